"""Plans: what they mean, how they print, and where their errors point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbert.bert import BertConfig, BertModel
from mtbert.sharing.plan import Level, PlanError, SharingPlan

TASKS = ("sst", "quora", "sts")
ALL, EACH = (TASKS,), (("sst",), ("quora",), ("sts",))


def modes(plan: SharingPlan) -> str:
    return "".join(level.mode for level in plan.levels.values())


@pytest.mark.parametrize(
    "text, layers, expected, printed",
    [
        ("F2 S4 I6", 12, "F" + "FF" + "SSSS" + "IIIIII" + "I", "F2 S4 I6"),
        ("S12", 12, "S" * 14, "S12"),
        ("1-bert", 3, "SSSSS", "S3"),
        ("3-bert", 3, "IIIII", "I3"),
        ("frozen", 3, "FFFFF", "F3"),
        ("hybrid-6", 12, "S" + "S" * 6 + "I" * 6 + "I", "S6 I6"),
        ("I1 S2", 3, "IISSS", "I1 S2"),
        ("emb:F S2 I1", 3, "FSSII", "emb:F S2 I1"),
        ("S2 I1 pool:S", 3, "SSSIS", "S2 I1 pool:S"),
        ("emb:S S3 pool:S", 3, "SSSSS", "S3"),
        ("S1 S2", 3, "SSSSS", "S3"),
        ("  F1   S2 ", 3, "FFSSS", "F1 S2"),
    ],
)
def test_what_a_plan_means(text, layers, expected, printed):
    plan = SharingPlan.parse(text, TASKS, layers)
    assert modes(plan) == expected and len(plan.layers) == layers
    assert str(plan) == printed
    assert SharingPlan.parse(str(plan), TASKS, layers) == plan


def test_a_plan_is_read_and_written_with_its_groups():
    plan = SharingPlan.parse("F1 S2( sst, quora | sts ) S1 I1", TASKS, 5)
    assert plan.layers == (
        Level("F", ALL),
        Level("S", (("sst", "quora"), ("sts",))),
        Level("S", (("sst", "quora"), ("sts",))),
        Level("S", ALL),
        Level("I", EACH),
    )
    assert str(plan) == "F1 S2(sst,quora|sts) S1 I1"
    assert SharingPlan.parse("S1(sts,sst|quora)", TASKS, 1).layers[0].groups == (("sst", "sts"), ("quora",))


@st.composite
def plans(draw) -> tuple[str, tuple[str, ...], int]:
    """The text of a valid plan, its tasks and its number of layers."""
    tasks = draw(st.permutations(["sst", "cfimdb", "quora", "sts"]))[: draw(st.integers(1, 4))]

    def held() -> tuple[str, str]:
        mode = draw(st.sampled_from("FSI"))
        if mode != "S" or not draw(st.booleans()):
            return mode, ""
        places = [draw(st.integers(0, 3)) for _ in tasks]
        groups = [
            ",".join(t for t, p in zip(tasks, places, strict=True) if p == place) for place in sorted(set(places))
        ]
        return mode, f"({'|'.join(groups)})"

    words, total = [], 0
    for _ in range(draw(st.integers(1, 5))):
        (mode, groups), layers = held(), draw(st.integers(1, 6))
        words.append(f"{mode}{layers}{groups}")
        total += layers
    if draw(st.booleans()):
        words.insert(0, "emb:{}{}".format(*held()))
    if draw(st.booleans()):
        words.append("pool:{}{}".format(*held()))
    return " ".join(words), tuple(tasks), total


@given(plans())
def test_every_plan_round_trips(drawn):
    text, tasks, total = drawn
    plan = SharingPlan.parse(text, tasks, total)
    assert SharingPlan.parse(str(plan), tasks, total) == plan
    assert len(plan.layers) == total
    for level in plan.levels.values():
        assert sorted(task for group in level.groups for task in group) == sorted(tasks)
        assert len(level.groups) == {"F": 1, "I": len(tasks)}.get(level.mode, len(level.groups))
    assert len(str(plan)) <= len(" ".join(text.split()))


@given(st.text(alphabet="FSI0123456789 ()|,:abdempolqrstu-", max_size=25))
def test_any_text_is_a_plan_or_an_error_that_points(text):
    try:
        plan = SharingPlan.parse(text, TASKS, 4)
    except PlanError as error:
        message = str(error)
        assert ("at character" in message and "^" in message) or "hybrid-" in message
    else:
        assert len(plan.layers) == 4


@pytest.mark.parametrize(
    "text, reason, character",
    [
        ("F2 S4 I7", "13 layers up to here, but the encoder has 12", 7),
        ("F2 S4", "6 layers in all, but the encoder has 12", 6),
        ("S4(sst,foo|sts) I8", "unknown task 'foo'", 8),
        ("S12(sst,quora|sst)", "task 'sst' is given twice", 15),
        ("S12(sst| sts)", "quora in no group", 13),
        ("S6 X6", "'X6' cannot be read", 4),
        ("S6 I", "'I' has no layers", 4),
        ("S6 I0 S6", "'I0' has no layers", 4),
        ("S12 emb:F", "emb: must come before", 5),
        ("pool:F S12", "a segment after pool:", 8),
        ("emb:F emb:S S12", "emb: must come before", 7),
        ("S12 pool:S pool:I", "pool: is given twice", 12),
        ("emb:F2 S12", "emb: is not layers", 6),
        ("I12(sst|quora,sts)", "groups are for S; individual layers have none", 4),
        ("F12(sst,quora,sts)", "groups are for S; frozen layers have none", 4),
        ("S12(|sst,quora,sts)", "a group or the name of a task is empty", 5),
        ("S12(sst,,quora|sts)", "a group or the name of a task is empty", 5),
        ("", "no layers", 1),
        ("5-bert", "'5-bert' cannot be read", 1),
    ],
)
def test_errors_point_at_the_character(text, reason, character):
    with pytest.raises(PlanError) as error:
        SharingPlan.parse(text, TASKS, 12)
    message = str(error.value)
    assert reason in message and f"at character {character}\n" in message
    shown, arrow = message.split("\n")[1:]
    assert shown == f"  {text}" and arrow.index("^") - 2 == character - 1


@pytest.mark.parametrize(
    "text, layers, reason",
    [
        ("hybrid-12", 12, "an encoder of 12 layers can share 1 to 11"),
        ("hybrid-40", 12, "an encoder of 12 layers can share 1 to 11"),
        ("hybrid-0", 12, "hybrid-0: a hybrid shares one layer or more; 3-bert shares none"),
        ("hybrid-0", None, "hybrid-0: a hybrid shares one layer or more; 3-bert shares none"),
        ("hybrid-1", 1, "hybrid-1: an encoder of one layer has no hybrid"),
    ],
)
def test_a_hybrid_shares_some_layers_but_not_all(text, layers, reason):
    with pytest.raises(PlanError, match=reason):
        SharingPlan.parse(text, TASKS, layers)


def test_one_text_is_no_sequence_of_tasks():
    with pytest.raises(PlanError, match=r"such as \('quora',\), not one text"):
        SharingPlan.parse("I12", "quora", 12)


@pytest.mark.parametrize("tasks", [(), ("sst", "sst")])
def test_tasks_are_different(tasks):
    with pytest.raises(PlanError, match="one or more different tasks"):
        SharingPlan.parse("S2", tasks, 2)


def test_without_an_encoder_the_number_of_layers_is_open():
    assert str(SharingPlan.parse("F2 S4", TASKS)) == "F2 S4"
    assert modes(SharingPlan.parse("hybrid-4", TASKS)) == "SSSSSII"


def test_table_counts_what_the_modules_hold():
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=20)
    model = BertModel(config)
    table = SharingPlan.parse("F1 S1(sst,quora|sts) I1", TASKS, 3).table(config)
    assert list(table.index) == ["embeddings", "layer 1", "layer 2", "layer 3", "pooler"]
    assert table["mode"].tolist() == ["frozen", "frozen", "shared", "individual", "individual"]
    assert table["groups"]["layer 2"] == "sst, quora | sts"
    counts = [sum(p.numel() for p in m.parameters()) for m in (model.embeddings, *model.layers, model.pooler)]
    copies = [1, 1, 2, 3, 3]
    assert table["copies"].tolist() == copies
    assert table["parameters"].tolist() == [n * count for n, count in zip(copies, counts, strict=True)]
    assert table["trained"].tolist() == [0, 0, *table["parameters"].tolist()[2:]]


def test_the_papers_sizes():
    """bert-base-uncased: 109.5 M parameters; hybrid-6 of three tasks has its upper half three times."""
    assert SharingPlan.parse("1-bert", TASKS, 12).table()["parameters"].sum() == 109_482_240
    hybrid = SharingPlan.parse("hybrid-6", TASKS, 12).table()["parameters"]
    assert hybrid.sum() == 109_482_240 + 2 * (6 * 7_087_872 + 590_592)
