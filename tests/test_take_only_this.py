"""Every block of docs/take_only_this.md runs as printed, and needs nothing of the laboratory."""

import re
import subprocess
import sys
import textwrap

import torch

from mtbert.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "take_only_this.md"
BLOCKS = re.findall(r"## ([^\n]+)\n[^#]*?```python\n(.*?)```", PAGE.read_text(encoding="utf8"), flags=re.DOTALL)


def test_the_page_has_all_six():
    assert len(BLOCKS) == PAGE.read_text(encoding="utf8").count("```python\n") == 6


def test_the_blocks_run_as_printed(tmp_path):
    """Each with names of its own, in a process that has imported nothing else."""
    runs = [f"exec(compile({block!r}, {title!r}, 'exec'), {{}})" for title, block in BLOCKS]
    check = "import sys; assert not {'mtbert_lab', 'typer', 'matplotlib'} & sys.modules.keys()"
    script = "\n".join([*runs, check])
    environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "MTBERT_CACHE": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


def test_a_pal_in_the_own_bert_changes_its_states():
    """The hooks add what the equation says: LN(h_att + FFN(h_att) + TS(h)) in every layer."""
    [block] = [block for title, block in BLOCKS if "PAL" in title]
    torch.manual_seed(0)
    names = {}
    exec(block, names)
    bert, pal, ids, mask = (names[name] for name in ("bert", "pal", "input_ids", "mask"))
    bert.eval(), pal.eval()
    hidden = bert.embeddings(ids)
    for depth, layer in enumerate(bert.encoder.layer):
        attended = layer.attention(hidden)
        attended = attended[0] if isinstance(attended, tuple) else attended
        fed = layer.output.dense(layer.intermediate(attended))
        hidden = layer.output.LayerNorm(attended + fed + pal.parallel(depth, hidden, mask))
    torch.testing.assert_close(bert(ids).last_hidden_state, hidden, rtol=1e-5, atol=1e-5)


def test_pcgrad_around_own_losses_is_the_update_of_the_equation():
    [block] = [block for title, block in BLOCKS if "PCGrad" in title]
    for seed in range(100):
        torch.manual_seed(seed)
        names = {}
        exec(block, names)
        g, h = names["G"]
        product = g @ h
        if product < 0:
            break
    assert product < 0, "some of these draws conflict"
    expected = g - product / (h @ h) * h + h - product / (g @ g) * g
    found = torch.cat([parameter.grad.flatten() for parameter in names["model"].parameters()])
    torch.testing.assert_close(found, expected)


def test_pcgrad_in_the_hybrid_encoder_trains_shared_levels_own_ones_and_heads():
    """The lines of one block in the place that they name in the other."""
    [hybrid] = [block for title, block in BLOCKS if "hybrid" in title]
    [own_losses] = [block for title, block in BLOCKS if "PCGrad" in title]
    _, _, lines = own_losses.partition("sum(losses).backward().\n")
    lines, _, _ = lines.partition("optimizer.step()")
    lines = lines.replace("in losses:", "in losses.values():")
    plain = "    sum(losses.values()).backward()\n"
    start = "batches = {"
    assert plain in hybrid and start in hybrid
    names = {}
    before = "from torch.nn.utils import parameters_to_vector\nfrom mtbert import pcgrad\n"
    before += "was = {n: p.detach().clone() for m in (encoder, heads) for n, p in m.named_parameters()}\n"
    hybrid = hybrid.replace(plain, textwrap.indent(lines, "    ")).replace(start, before + start)
    exec(hybrid, names)
    parts = (names["encoder"], names["heads"])
    still = {n for part in parts for n, p in part.named_parameters() if torch.equal(p, names["was"][n])}
    assert not {name for name in still if "token_type" not in name and "position" not in name}
