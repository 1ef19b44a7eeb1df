"""Draws the diagrams of notebook 04, how data and gradients flow, into mtbert_lab/report/site.

Once, and again where a drawing is to change: `python tools/draw_diagrams.py`, in the root of a checkout.
Lengths are pixels, from the upper left corner. A task has the colour that it has in every figure.
"""

import html
import math
import re
from dataclasses import dataclass
from itertools import pairwise

from mtbert.paths import REPOSITORY
from mtbert_lab.report.plots import COLOURS, GREY, TASK_LABELS

Point = tuple[float, float]

LINE = 17  # between two lines of text
HEAD = 7  # length of an arrow's head
TASKS = ("sst", "quora", "sts")
# Currentcolor is that of the root: black on white or, where the page or the system is dark, white on black.
STYLE = """
svg { color: #1f2328; background: #ffffff; color-scheme: light dark }
text { font: 13px "DejaVu Sans", Verdana, sans-serif; fill: currentcolor; text-anchor: middle }
.small { font-size: 11px } .left { text-anchor: start } .right { text-anchor: end } .bold { font-weight: bold }
.box { stroke-width: 1.3; fill-opacity: .16 } .line { fill: none; stroke-width: 1.6 } .dashed { stroke-dasharray: 5 4 }
.thick { stroke-width: 2.6 } .faint { opacity: .5 }
@media (prefers-color-scheme: dark) {
  svg { color: #e8e8e8; background: #131416 }
  .tinted, .line, .head { filter: brightness(1.3) }
}
"""
HOVER = """
.path { cursor: pointer; outline: none; transition: opacity .15s }
.path .band { fill-opacity: .18 } .path .touch { fill: transparent }
svg:has(.path:is(:hover, :focus)) .path:not(:hover, :focus) { opacity: .13 }
.path:is(:hover, :focus) .line { stroke-width: 3.5 } .path:is(:hover, :focus) .band { fill-opacity: .55 }
"""


@dataclass(frozen=True)
class Box:
    """A rectangle of a drawing, and where arrows meet it."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height


class Drawing:
    """An SVG in the making: what is added later covers what was added before."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width = width
        self.height = height
        self.label = label
        self.parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", colour: str = GREY, radius: float = 5
    ) -> Box:
        """A box with text in its middle; a line of text ends at a line feed. radius: of its corners."""
        box = Box(x, y, width, height)
        paint = f'fill="{colour}" stroke="{colour}"'
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect class="box" {size} rx="{radius:g}" {paint}/>')
        if text:
            self.text(x + width / 2, y + height / 2, text)
        return box

    def plus(self, x: float, y: float, radius: float = 10) -> Box:
        """A sum: a circle with a plus sign."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="none" stroke="currentcolor"/>')
        arm = radius - 4
        self.line((x - arm, y), (x + arm, y))
        self.line((x, y - arm), (x, y + arm))
        return Box(x - radius, y - radius, 2 * radius, 2 * radius)

    def text(self, x: float, y: float, text: str, looks: str = "", colour: str = "") -> None:
        """Lines of text, centred about a point; x_y is x with the index y. looks: classes of STYLE."""
        lines = text.split("\n")
        paint = ""
        if colour:
            looks += " tinted"
            paint = f' style="fill: {colour}"'
        for i, line in enumerate(lines):
            height = y + (i - (len(lines) - 1) / 2) * LINE + 4.5
            place = f'class="{looks}" x="{x:g}" y="{height:g}"{paint}'
            self.parts.append(f"<text {place}>{_with_indices(line)}</text>")

    def line(self, *points: Point, colour: str = "currentcolor", looks: str = "") -> None:
        """A line through the points. looks: classes of STYLE."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline class="line {looks}" points="{path}" stroke="{colour}"/>')

    def arrow(self, *points: Point, colour: str = "currentcolor", looks: str = "") -> None:
        """A line through the points with a head at the last one."""
        *before, start, tip = points
        length = math.dist(start, tip)
        dx = (tip[0] - start[0]) / length
        dy = (tip[1] - start[1]) / length
        neck = (tip[0] - HEAD * dx, tip[1] - HEAD * dy)
        self.line(*before, start, neck, colour=colour, looks=looks)
        half = HEAD / 2
        corners = [tip, (neck[0] - half * dy, neck[1] + half * dx), (neck[0] + half * dy, neck[1] - half * dx)]
        path = " ".join(f"{x:.4g},{y:.4g}" for x, y in corners)
        self.parts.append(f'<polygon class="head" points="{path}" fill="{colour}"/>')

    def chain(self, *boxes: Box, colour: str = "currentcolor", looks: str = "") -> None:
        """Arrows from each box to the next one, from left to right."""
        for first, second in pairwise(boxes):
            self.arrow(first.right, second.left, colour=colour, looks=looks)

    def svg(self, style: str = "") -> str:
        """The drawing as a file."""
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        label = html.escape(self.label)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
        return "\n".join([head, f"<style>{STYLE}{style}</style>", *self.parts, "</svg>", ""])


def hybrid() -> Drawing:
    """hybrid-3 with three tasks and six layers: the rows of all tasks through three layers, then each on its own."""
    drawing = Drawing(860, 292, "Three tasks go through three shared layers together, then through three of their own.")
    rows = dict(zip(TASKS, (86, 162, 238), strict=True))  # the middle of each task's line
    inputs = {"sst": "a sentence", "quora": "two questions", "sts": "two sentences"}
    outputs = {"sst": "one of 5\nclasses", "quora": "duplicate\nor not", "sts": "0 to 5"}
    shared = [drawing.box(x, 36, 62, 246, colour=COLOURS["shared"]) for x in (140, 218, 296, 374)]
    for box, label in zip(shared, ("embed", "layer 1", "layer 2", "layer 3"), strict=True):
        drawing.text(box.top[0], 50, label, "small")
    drawing.text(288, 18, "shared by all tasks: one set of weights", "bold", COLOURS["shared"])
    drawing.text(571, 18, "individual: a copy for each task", "bold", COLOURS["individual"])
    for task, y in rows.items():
        colour = COLOURS[task]
        drawing.parts.append(f'<g class="path" tabindex="0"><title>{TASK_LABELS[task]}</title>')
        drawing.parts.append(f'<rect class="touch" x="0" y="{y - 37}" width="860" height="74"/>')
        start = drawing.box(8, y - 27, 108, 54, f"{TASK_LABELS[task]}\n{inputs[task]}", colour)
        for box in shared:
            band = f'x="{box.x + 5:g}" y="{y - 17}" width="{box.width - 10:g}" height="34" rx="4" fill="{colour}"'
            drawing.parts.append(f'<rect class="band" {band}/>')
        own = [drawing.box(x, y - 24, 62, 48, f"layer {depth}", colour) for x, depth in ((462, 4), (540, 5), (618, 6))]
        head = drawing.box(700, y - 24, 50, 48, "head", colour)
        end = drawing.box(776, y - 24, 76, 48, outputs[task], colour)
        drawing.arrow(start.right, own[0].left, colour=colour)
        drawing.chain(*own, head, end, colour=colour)
        drawing.parts.append("</g>")
    return drawing


def pal() -> Drawing:
    """A projected attention layer beside a layer of the encoder."""
    drawing = Drawing(840, 290, "A PAL below a layer of BERT: it reads the layer's input and is added at its end.")
    shared = COLOURS["shared"]
    own = COLOURS["individual"]
    start = drawing.box(8, 82, 50, 46, "h\nd")
    attention = drawing.box(94, 82, 104, 46, "attention\nand W_O", shared)
    first = drawing.plus(236, 105)
    norm = drawing.box(268, 82, 58, 46, "layer\nnorm", shared)
    state = drawing.box(348, 82, 56, 46, "h_att\nd")
    feed = drawing.box(440, 82, 108, 46, "feed-forward", shared)
    second = drawing.plus(620, 105)
    last = drawing.box(668, 82, 58, 46, "layer\nnorm", shared)
    end = drawing.box(762, 82, 66, 46, "next h\nd")
    drawing.chain(start, attention, first, norm, state, feed, second, last, end)
    drawing.arrow((76, 105), (76, 56), (236, 56), first.top)
    drawing.arrow((422, 105), (422, 56), (620, 56), second.top)
    drawing.text(156, 44, "residual", "small")
    drawing.text(521, 44, "residual", "small")
    drawing.text(14, 18, "the layer of BERT, shared by all tasks", "left bold", shared)
    encode = drawing.box(116, 204, 86, 46, "V_E\nd to s", own)
    mix = drawing.box(238, 204, 132, 46, "g: attention\nin s dimensions", own)
    decode = drawing.box(406, 204, 86, 46, "V_D\ns to d", own)
    gelu = drawing.box(528, 204, 62, 46, "GELU", own)
    drawing.arrow((76, 105), (76, 227), encode.left)
    drawing.chain(encode, mix, decode, gelu)
    drawing.arrow(gelu.right, (620, 227), second.bottom)
    drawing.text(632, 176, "TS(h)", "left")
    drawing.text(14, 276, "the PAL, of one task: V_E and V_D serve all layers, g is of this layer", "left bold", own)
    return drawing


def one_or_two() -> Drawing:
    """A pair of sentences as one sequence, and as two."""
    drawing = Drawing(
        840,
        330,
        "Both questions in one sequence; or one by one, which gives two embeddings.",
    )
    shared = COLOURS["shared"]
    first, second = COLOURS["sst"], COLOURS["sts"]
    drawing.text(12, 18, "one sequence (joint): every layer compares the words of both", "left bold")
    words = [("[CLS]", 50, GREY), ("question 1", 92, first), ("[SEP]", 50, GREY)]
    words += [("question 2", 92, second), ("[SEP]", 50, GREY)]
    place = 12.0
    for text, width, colour in words:
        last = drawing.box(place, 40, width, 40, text, colour)
        place += width
    encoder = drawing.box(386, 34, 116, 52, "encoder\nall layers", shared)
    joint = drawing.box(546, 40, 46, 40, "h", GREY)
    head = drawing.box(700, 40, 60, 40, "head", GREY)
    drawing.chain(last, encoder, joint, head)
    drawing.arrow(head.right, (812, 60))
    drawing.text(824, 60, "y")
    drawing.line((12, 112), (828, 112), colour=GREY, looks="dashed")
    drawing.text(12, 138, "two sequences (for example concat+product): only the head compares", "left bold")
    ends = []
    for y, number, colour in ((162, 1, first), (240, 2, second)):
        cls = drawing.box(12, y, 50, 40, "[CLS]")
        own = drawing.box(cls.right[0], y, 92, 40, f"question {number}", colour)
        sep = drawing.box(own.right[0], y, 50, 40, "[SEP]")
        one = drawing.box(386, y - 6, 116, 52, "encoder\nall layers", shared)
        state = drawing.box(546, y, 46, 40, f"h_{number}", colour)
        drawing.chain(sep, one, state)
        ends.append((one, state))
    drawing.line(ends[0][0].bottom, ends[1][0].top, colour=shared, looks="dashed")
    drawing.text(452, 221, "the same weights", "left small", shared)
    features = drawing.box(618, 190, 100, 62, "h_1, h_2\nh_1 ⊙ h_2", GREY)
    drawing.arrow(ends[0][1].right, (605, 182), (605, 210), (618, 210))
    drawing.arrow(ends[1][1].right, (605, 260), (605, 232), (618, 232))
    small = drawing.box(744, 201, 56, 40, "head", GREY)
    drawing.chain(features, small)
    drawing.arrow(small.right, (822, 221))
    drawing.text(832, 221, "y")
    drawing.text(
        12,
        314,
        "Two embeddings can be kept and compared with any other; one sequence has to run for every pair.",
        "left small",
    )
    return drawing


def progressive() -> Drawing:
    """Progressive heads: sentiment feeds paraphrase, and both feed similarity."""
    drawing = Drawing(
        800,
        300,
        "The logits of SST's head join the input of Quora's head, and those of both that of STS's.",
    )
    source = drawing.box(10, 99, 104, 56, "embedding\nlayer norm")
    rows = dict(zip(TASKS, (12, 102, 192), strict=True))
    widths = {"sst": "d", "quora": "d + 5", "sts": "d + 5 + 1"}
    outs = {"sst": "5 logits", "quora": "1 logit", "sts": "1 score"}
    heads = {}
    ends = {}
    for task, y in rows.items():
        colour = COLOURS[task]
        heads[task] = drawing.box(250, y, 290, 50, "", colour)
        middle = y + 25
        drawing.text(264, middle, f"{TASK_LABELS[task]}: reads {widths[task]}", "left")
        drawing.text(528, middle, "linear, ReLU, linear", "right small")
        ends[task] = drawing.box(640, y + 4, 86, 42, outs[task], colour)
        drawing.chain(heads[task], ends[task], colour=colour)
        drawing.arrow(source.right, (160, 127), (160, middle), heads[task].left)
    lanes = [("sst", "quora", 572, 420), ("sst", "sts", 596, 470), ("quora", "sts", 612, 420)]
    for upstream, task, x, entry in lanes:
        colour = COLOURS[upstream]
        y = rows[upstream] + 25
        gap = rows[task] - (14 if entry == 420 else 22)
        drawing.arrow((x, y), (x, gap), (entry, gap), (entry, rows[task]), colour=colour, looks="dashed")
    drawing.text(
        10,
        266,
        "dashed: seen by the head below; its gradient does not change the weights of the head above (frozen)",
        "left small",
    )
    return drawing


def projection() -> Drawing:
    """What PCGrad does to one gradient that conflicts with another."""
    drawing = Drawing(860, 238, "Of two gradients at an obtuse angle, the first loses its part along the second.")
    origin = (230.0, 204.0)
    scale = 170.0

    def at(x: float, y: float) -> Point:
        return origin[0] + scale * x, origin[1] - scale * y

    first = (1.25, 0.5)
    second = (-1.0, 0.75)
    product = first[0] * second[0] + first[1] * second[1]
    square = second[0] ** 2 + second[1] ** 2
    factor = product / square
    freed = (first[0] - factor * second[0], first[1] - factor * second[1])
    drawing.line(at(-0.15 * second[1], 0.15 * second[0]), at(1.12 * second[1], -1.12 * second[0]), looks="faint dashed")
    drawing.arrow(origin, at(*second), colour=COLOURS["sts"], looks="thick")
    drawing.arrow(origin, at(*first), colour=COLOURS["sst"], looks="thick")
    drawing.arrow(at(*first), at(*freed), colour=COLOURS["individual"], looks="dashed")
    drawing.arrow(origin, at(*freed), colour=COLOURS["shared"], looks="thick")
    corner = 0.09  # of the right angle between g_j and what is left of g_i
    along = (corner * second[0], corner * second[1])
    across = (corner * second[1], -corner * second[0])
    both = (along[0] + across[0], along[1] + across[1])
    drawing.line(at(*along), at(*both), at(*across), looks="faint")
    drawing.text(*at(second[0] - 0.05, second[1] + 0.08), "g_j", "bold", COLOURS["sts"])
    drawing.text(*at(first[0] + 0.09, first[1] + 0.03), "g_i", "bold", COLOURS["sst"])
    drawing.text(*at(freed[0] - 0.3, freed[1] - 0.04), "new g_i", "bold", COLOURS["shared"])
    notes = [
        (40, COLOURS["shared"], "at a right angle to g_j: j does not lose"),
        (80, COLOURS["individual"], "taken away: (g_i · g_j / |g_j|²) g_j"),
        (126, COLOURS["sst"], "g_i · g_j < 0: descending along g_i, j loses"),
    ]
    for y, colour, note in notes:
        drawing.text(484, y, note, "left", colour)
    return drawing


def distillation() -> Drawing:
    """A student learns a teacher's probabilities beside the labels."""
    drawing = Drawing(820, 306, "The student's class probabilities are compared with the teacher's and with the label.")
    rows = {"teacher": 52, "student": 152, "label": 252}
    colours = {"teacher": COLOURS["frozen"], "student": COLOURS["shared"], "label": GREY}
    shares = {
        "teacher": (0.04, 0.16, 0.42, 0.33, 0.05),
        "student": (0.10, 0.28, 0.30, 0.22, 0.10),
        "label": (0.0, 0.0, 1.0, 0.0, 0.0),
    }
    source = drawing.box(10, 126, 92, 52, "a sentence\nof SST")
    boxes = {
        "teacher": drawing.box(150, 26, 120, 52, "teacher\nstays as it is", colours["teacher"]),
        "student": drawing.box(150, 126, 120, 52, "student\nis trained", colours["student"]),
        "label": drawing.box(150, 226, 120, 52, "label", colours["label"]),
    }
    names = {"teacher": "p", "student": "q", "label": "l"}
    for row, y in rows.items():
        base = y + 32
        drawing.arrow(boxes[row].right, (318, y))
        for i, share in enumerate(shares[row]):
            height = max(2, 62 * share)
            drawing.box(330 + 22 * i, base - height, 16, height, colour=colours[row], radius=0)
        drawing.line((326, base), (440, base))
        drawing.text(456, y + 4, names[row], "bold", colours[row])
    drawing.arrow(source.right, boxes["student"].left)
    drawing.arrow(source.right, (126, 152), (126, 52), boxes["teacher"].left)
    soft = drawing.box(510, 76, 150, 52, "soft: H(p_τ, q_τ)\ntimes w τ²", colours["teacher"])
    hard = drawing.box(510, 176, 150, 52, "hard: H(l, q)\ntimes 1 − w", colours["label"])
    drawing.arrow((472, 52), (490, 52), (490, 92), (510, 92))
    drawing.arrow((472, 152), (490, 152), (490, 112), (510, 112))
    drawing.arrow((490, 152), (490, 192), (510, 192))
    drawing.arrow((472, 252), (490, 252), (490, 212), (510, 212))
    total = drawing.plus(708, 152)
    drawing.arrow(soft.right, (708, 102), total.top)
    drawing.arrow(hard.right, (708, 202), total.bottom)
    loss = drawing.box(744, 131, 64, 42, "loss")
    drawing.arrow(total.right, loss.left)
    drawing.text(776, 204, "its gradient\ntrains the\nstudent", "small")
    return drawing


def _with_indices(text: str) -> str:
    """Text of SVG in which x_y is x with the index y, lower and smaller."""
    text = html.escape(text)
    return re.sub(r"_(\w+)", r'<tspan dy="4" font-size="10">\1</tspan><tspan dy="-4">&#8203;</tspan>', text)


def main() -> None:
    """Draw all of them."""
    drawings = {
        "hybrid": hybrid,
        "pal": pal,
        "one_or_two": one_or_two,
        "progressive": progressive,
        "pcgrad_projection": projection,
        "distillation": distillation,
    }
    for name, draw in drawings.items():
        svg = draw().svg(HOVER if name == "hybrid" else "")
        (REPOSITORY / f"mtbert_lab/report/site/04_{name}.svg").write_text(svg, encoding="utf8")


if __name__ == "__main__":
    main()
