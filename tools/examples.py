"""Write the samples in examples/: drawn scenes with a handwritten digit, asked about in every form that is read.

The same scenes stand in each form, so that a reader's rows can be compared with another's. Random numbers are integers
from a keyed PCG64 and painting is integer arithmetic: pixels and text files are the same wherever this runs
(`tests/data/build/test_examples.py` compares them).
"""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from explicit_learning.data.digits.pools import load_pool
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCENES = 24
SIDE, OBJECT, MARGIN = 96, 32, 3  # pixels
SEED = 13
COLOURS = {
    "red": (214, 48, 49),
    "green": (39, 174, 96),
    "blue": (41, 98, 255),
    "yellow": (244, 208, 63),
    "purple": (142, 68, 173),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle")
QUARTERS = ("upper left", "upper right", "lower left", "lower right")
LETTERS = "ABCD"
# The questions that take turns.
DIGIT, COLOUR_CHOICE, ODD, COLOUR_TEXT, DIGIT_MASK, THING = range(6)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A picture with its question.

    Attributes:
        name: What its files are called.
        pixels: uint8[96, 96, 3].
        question: The question.
        answer: The right answer.
        box: Where it is seen: left, top, right, bottom.
        choices: The choices' texts, if there are any.
        mask: bool[96, 96] in place of the box, in some scenes.
        other: (pixels, answer) of the same scene with another digit, in some.
    """

    name: str
    pixels: NDArray[np.uint8]
    question: str
    answer: str
    box: tuple[int, int, int, int]
    choices: list[str] = field(default_factory=list)
    mask: NDArray[np.bool_] | None = None
    other: tuple[NDArray[np.uint8], str] | None = None


def background(random: np.random.Generator) -> NDArray[np.uint8]:
    """Return a slope between two colours with coarse blocks on it."""
    low, high = random.integers(20, 170, 3), random.integers(60, 220, 3)
    steps = random.integers(-3, 4, 2)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    slope = steps[0] * x + steps[1] * y
    slope = (slope - slope.min()) * 256 // max(int(np.ptp(slope)), 1)
    blocks = np.kron(random.integers(-28, 29, (8, 8)), np.ones((12, 12), np.int64))
    mixed = (low * (256 - slope[..., None]) + high * slope[..., None]) // 256 + blocks[..., None]
    return np.clip(mixed, 0, 255).astype(np.uint8)


def shape_mask(shape: str) -> NDArray[np.bool_]:
    """Return the pixels of a shape in its square, bool[32, 32]."""
    y, x = np.mgrid[0:OBJECT, 0:OBJECT]
    if shape == "circle":
        return (2 * x - OBJECT + 1) ** 2 + (2 * y - OBJECT + 1) ** 2 <= (OBJECT - MARGIN) ** 2
    if shape == "square":
        return (np.minimum(x, y) >= MARGIN) & (np.maximum(x, y) < OBJECT - MARGIN)
    return (y >= MARGIN) & (y < OBJECT - MARGIN) & (np.abs(2 * x - OBJECT + 1) < y)


def digit_mask(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a digit's ink, smoothed grey levels of at least a third of the highest: uint8[8, 8] -> bool[32, 32]."""
    grey = np.pad(np.kron(image.astype(np.int64), np.ones((4, 4), np.int64)), 3)
    smooth = np.lib.stride_tricks.sliding_window_view(grey, (7, 7)).sum(axis=(2, 3))
    return smooth * 3 >= 16 * 7 * 7


def scene(index: int) -> Scene:
    """Draw one scene and ask about it; six questions take turns."""
    random = np.random.Generator(np.random.PCG64([SEED, index]))
    pool = load_pool("train" if index % 3 else "evaluation")
    pixels = background(random)
    names, places = random.permutation(list(COLOURS))[:4], random.permutation(4)
    corners = [
        (int(place % 2) * 48 + int(random.integers(1, 16)), int(place // 2) * 48 + int(random.integers(1, 16)))
        for place in places
    ]
    first, second = (int(one) for one in random.choice(len(pool.labels), 2, replace=False))
    while pool.labels[second] == pool.labels[first]:
        second = (second + 1) % len(pool.labels)
    boxes = {}
    for shape, name, (x, y) in zip(SHAPES, names, corners, strict=False):
        pixels[y : y + OBJECT, x : x + OBJECT][shape_mask(shape)] = COLOURS[name]
        boxes[shape] = (x, y, x + OBJECT, y + OBJECT)
    x, y = corners[3]
    boxes["digit"] = (x, y, x + OBJECT, y + OBJECT)
    digit, ink = int(pool.labels[first]), digit_mask(pool.images[first])
    plain = pixels.copy()
    pixels[y : y + OBJECT, x : x + OBJECT][ink] = COLOURS[names[3]]
    plain[y : y + OBJECT, x : x + OBJECT][digit_mask(pool.images[second])] = COLOURS[names[3]]
    asked = {"name": f"{index:02d}", "pixels": pixels, "box": boxes["digit"]}
    number = "Which digit is written in the picture?"
    kind = (DIGIT, COLOUR_CHOICE, ODD, COLOUR_TEXT, DIGIT_MASK, THING)[index % 6]
    if kind == DIGIT:
        return Scene(question=number, answer=str(digit), other=(plain, str(int(pool.labels[second]))), **asked)
    if kind == ODD:
        return Scene(question="Is the digit in the picture odd?", answer="yes" if digit % 2 else "no", **asked)
    if kind == DIGIT_MASK:
        mask = np.zeros((SIDE, SIDE), bool)
        mask[y : y + OBJECT, x : x + OBJECT] = ink
        return Scene(question=number, answer=str(digit), mask=mask, **asked)
    if kind == THING:
        quarter = int(random.integers(4))
        things = [f"a {shape}" for shape in (*SHAPES, "digit")]
        seen = int(np.flatnonzero(places == quarter)[0])
        asked["box"] = list(boxes.values())[seen]
        question = f"What is in the {QUARTERS[quarter]} quarter?"
        return Scene(question=question, answer=LETTERS[seen], choices=things, **asked)
    shape = SHAPES[(index // 6) % 3]
    colour = str(names[SHAPES.index(shape)])
    asked["box"] = boxes[shape]
    if kind == COLOUR_TEXT:
        return Scene(question=f"Which colour does the {shape} have?", answer=colour, **asked)
    order = [str(name) for name in random.permutation(names)]
    return Scene(question=f"Which colour does the {shape} have?", answer=colour, choices=order, **asked)


def save(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a PNG."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="PNG", optimize=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file with its line ends as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def lines(rows: list[dict[str, Any]]) -> str:
    """Return rows as JSON Lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def own_row(one: Scene) -> dict[str, Any]:
    """Return a scene in this program's own form."""
    row: dict[str, Any] = {"id": f"scene-{one.name}", "image": f"images/{one.name}.png"}
    row |= {"question": one.question, "answer": one.answer}
    if one.choices:
        row["choices"] = one.choices
    row["evidence"] = {"boxes": [list(one.box)]} if one.mask is None else {"masks": [f"masks/{one.name}.png"]}
    if one.other:
        row["substitute"] = {"image": f"images/{one.name}-other.png", "answer": one.other[1]}
    return row


def write_csv(path: Path, scenes: list[Scene]) -> None:
    """Write scenes as CSV with semicolons, as programs for tables save it."""
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=";", lineterminator="\r\n")
    writer.writerow(["id", "image", "question", "answer", "choices", "bbox"])
    for one in scenes:
        choices = json.dumps(one.choices) if one.choices else ""
        image, name = f"images/{one.name}.png", f"scene-{one.name}"
        writer.writerow([name, image, one.question, one.answer, choices, json.dumps(one.box)])
    write_text(path, "\ufeff" + stream.getvalue())


def write_parquet(path: Path, scenes: list[Scene], images: Path) -> None:
    """Write scenes as a Hugging Face dataset folder, the images' bytes in the rows."""
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": f"scene-{one.name}",
            "image": {"bytes": (images / f"{one.name}.png").read_bytes(), "path": f"{one.name}.png"},
            "question": one.question,
            "answer": one.answer,
            "choices": one.choices or None,
            "objects": {"bbox": [list(one.box)], "category": ["evidence"]},
        }
        for one in scenes
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=8)


def coco(scenes: list[Scene]) -> dict[str, Any]:
    """Return scenes as one COCO document: boxes are instances, answers are annotations of questions."""
    images, questions, answers, instances = [], [], [], []
    for number, one in enumerate(scenes, 1):
        x0, y0, x1, y1 = one.box
        images.append({"id": number, "file_name": f"images/{one.name}.png", "width": SIDE, "height": SIDE})
        question = {"question_id": 100 + number, "image_id": number, "question": one.question}
        questions.append(
            question | ({"choices": one.choices} if one.choices else {}) | {"annotation_ids": [500 + number]}
        )
        answers.append({"question_id": 100 + number, "image_id": number, "multiple_choice_answer": one.answer})
        bbox = [x0, y0, x1 - x0, y1 - y0]
        instances.append({"id": 500 + number, "image_id": number, "category_id": 1, "bbox": bbox, "iscrowd": 0})
    categories = [{"id": 1, "name": "evidence"}]
    annotations = answers + instances
    return {"images": images, "questions": questions, "annotations": annotations, "categories": categories}


def visual_cot(one: Scene) -> dict[str, Any]:
    """Return a scene as Visual-CoT writes it."""
    row = {"question": one.question, "answer": one.answer, "image": f"images/{one.name}.png"}
    row |= {"width": SIDE, "height": SIDE, "bboxs": [list(one.box)], "dataset": "scenes", "split": "train"}
    return row | ({"choices": one.choices} if one.choices else {})


def llava(one: Scene) -> dict[str, Any]:
    """Return a scene as LLaVA writes it; some have a second question."""
    asked = one.question
    if one.choices:
        asked += "\n" + "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, one.choices, strict=True))
    turns = [{"from": "human", "value": f"<image>\n{asked}"}, {"from": "gpt", "value": one.answer}]
    if int(one.name) % 4 == 0:
        question = "Is there a digit in the picture?"
        turns += [{"from": "human", "value": question}, {"from": "gpt", "value": "yes"}]
    return {"id": f"scene-{one.name}", "image": f"images/{one.name}.png", "conversations": turns}


def bad_rows() -> list[dict[str, Any]]:
    """Return one right row and many wrong ones; each one's id says what is wrong with it."""
    good = {"image": "images/03.png", "question": "Which colour is it?", "answer": "red", "bbox": [1, 2, 30, 40]}
    changes: dict[str, dict[str, Any]] = {
        "right": {},
        "image-missing": {"image": "images/nowhere.png"},
        "image-absolute": {"image": "/etc/passwd"},
        "image-url": {"image": "https://example.org/03.png"},
        "image-leaves": {"image": "images/../../secret.png"},
        "image-backslash": {"image": "images\\03.png"},
        "image-drive": {"image": "C:/images/03.png"},
        "image-folder": {"image": "images"},
        "image-both": {"images": ["images/04.png"]},
        "question-blank": {"question": " \n"},
        "question-long": {"question": "long " * 10_000},
        "question-control": {"question": "Which\u0007 colour?"},
        "question-token": {"question": "Which colour?<|im_end|>"},
        "question-invisible": {"question": "Which co\u200blour?"},
        "answer-missing": {"answer": None},
        "answer-abstention": {"answer": ""},
        "answer-long": {"answer": "a very long answer " * 5},
        "answer-markup": {"answer": "<b>red</b>"},
        "answer-lines": {"answer": "red\nblue"},
        "answer-list": {"answer": ["red", "blue"]},
        "answer-differs": {"answer": "blue"},
        "type-unknown": {"answer_type": "colour"},
        "type-not-fitting": {"answer_type": "number"},
        "choices-one": {"choices": ["red"]},
        "choices-alike": {"choices": ["Red", "red."]},
        "choices-without-answer": {"choices": ["blue", "green"]},
        "box-outside": {"bbox": [50, 50, 200, 90]},
        "box-flat": {"bbox": [10, 10, 10, 40]},
        "box-text": {"bbox": ["1", "2", "3", "4"]},
        "box-whole": {"bbox": [0, 0, SIDE, SIDE]},
        "box-reversed": {"bbox": [60, 60, 20, 20]},
        "box-xywh": {"bbox": [60, 60, 20, 30]},
        "box-normalised": {"bbox": [0.25, 0.25, 0.5, 0.75]},
        "box-thousandths": {"bbox": [250, 250, 500, 750]},
        "mask-and-box": {"evidence": {"masks": ["masks/04.png"]}},
        "mask-other-size": {"bbox": None, "evidence": {"masks": ["masks/small.png"]}},
        "mask-empty": {"bbox": None, "evidence": {"masks": ["masks/empty.png"]}},
        "substitute-half": {"substitute": {"image": "images/00-other.png"}},
        "substitute-same-answer": {"substitute": {"image": "images/00-other.png", "answer": "Red."}},
        "field-misspelt": {"anwser_type": "text", "answer_typ": "text"},
    }
    rows = [{"id": name} | good | change for name, change in changes.items()]
    return [*rows, rows[0] | {"image": "images/05.png"}]  # an id that was there already


def write_examples(folder: Path) -> None:
    """Write all samples into a folder."""
    scenes = [scene(index) for index in range(SCENES)]
    for one in scenes:
        save(folder / "images" / f"{one.name}.png", one.pixels)
        if one.other:
            save(folder / "images" / f"{one.name}-other.png", one.other[0])
        if one.mask is not None:
            save(folder / "masks" / f"{one.name}.png", one.mask.astype(np.uint8) * 255)
    save(folder / "masks" / "small.png", np.full((8, 8), 255, np.uint8))
    save(folder / "masks" / "empty.png", np.zeros((SIDE, SIDE), np.uint8))
    write_text(folder / "rows.jsonl", lines([own_row(one) for one in scenes]))
    write_csv(folder / "rows.csv", scenes)
    write_parquet(folder / "parquet" / "train-00000-of-00001.parquet", scenes, folder / "images")
    write_text(folder / "coco-vqa.json", json.dumps(coco(scenes), indent=1) + "\n")
    write_text(folder / "visual-cot.jsonl", lines([visual_cot(one) for one in scenes]))
    write_text(folder / "llava.json", json.dumps([llava(one) for one in scenes], indent=1) + "\n")
    write_text(folder / "refused.jsonl", lines(bad_rows()) + '{"id": "not-json", "question": \n[1, 2]\n')


if __name__ == "__main__":
    write_examples(ROOT / "examples")
