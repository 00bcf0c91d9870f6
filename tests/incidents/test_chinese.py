"""Detectors' sentences in Chinese: their literal parts are in the catalogue, figures and names stay."""
# ruff: noqa: E501, ISC004 - sentences as detectors write them

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch import detectors
from flightwatch.incidents.chinese import in_chinese
from flightwatch.incidents.sentences_zh import SENTENCES, WORDS

FOLDER = Path(next(iter(detectors.__path__)))
#: Variables that detectors build their sentences in.
NAMES = {"text", "since", "many", "tail"}
#: Modules whose sentences are read by people who run a command on files, never by the console.
ELSEWHERE = {"hang.py", "hang_logs.py", "kernel_events.py"}
_HOLE = re.compile(r"\{\w+\}")


def spoken(tree: ast.AST) -> Iterator[ast.expr]:
    """Give the expressions of which sentences are made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "summary":
            yield node.value
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id in NAMES for one in targets):
                yield node.value


def literals(expression: ast.expr) -> Iterator[str]:
    """Give the literal parts of an expression that are long enough to be words of a sentence."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 12:
            yield node.value.removesuffix(": over.").strip("; ")


def test_the_literals_of_the_detectors_sentences_are_known() -> None:
    known = " ".join([*SENTENCES, *WORDS, ": over.", "its stack stands at"])
    plain = _HOLE.sub("", known)
    every = [
        (path.name, text)
        for path in sorted(FOLDER.glob("*.py"))
        if path.name not in ELSEWHERE
        for expression in spoken(ast.parse(path.read_text(encoding="utf-8")))
        for text in literals(expression)
    ]
    unknown = [
        (name, text)
        for name, text in every
        if _HOLE.sub("", text) not in known and re.sub(r"\{[^}]*\}", "", text) not in plain
    ]
    assert len(every) > 50
    # A sentence that is new stays English until somebody translates it; a catalogue that falls behind does not.
    assert len(unknown) <= 0.1 * len(every), unknown


@pytest.mark.parametrize("english", SENTENCES)
def test_a_sentence_keeps_what_stands_in_its_holes(english: str) -> None:
    holes = list(dict.fromkeys(re.findall(r"\{(\w+)\}", english)))
    texts = {hole: f"n{number}.5" for number, hole in enumerate(holes)}
    texts |= {"what": "moves data 3.1 % of the step longer", "where": " in layer.3 (forward)"}
    found = in_chinese(english.format(**texts))
    assert found is not None
    assert re.search(r"[一-鿿，。；：]", found)
    for hole in re.findall(r"\{(\w+)\}", SENTENCES[english]):
        assert (texts[hole] if hole != "what" else "3.1 %") in found


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("rank 29 (n3 device 5) computes 23.3 % longer than its role peers; the job would gain 14.3 % of its step without"
         " it.", "rank 29 (n3 GPU 5) 计算时间比同角色 rank 长 23.3 %；作业去掉它后每步可缩短 14.3 %。"),
        ("rank 29 (n3 device 5) computes 23.3 % longer than its role peers: over.",
         "rank 29 (n3 GPU 5) 计算时间比同角色 rank 长 23.3 %：已恢复。"),
        ("Cooling zone z5 warms: over.", "冷却区 z5 升温：已恢复。"),
        ("n1 device 3: over.", "n1 GPU 3：已恢复。"),
        ("Insufficient coverage of demo: 92 % of the step is neither compute nor communication; only 3 of 4 ranks report.",
         "对 demo 的观测不足：每步有 92 % 既非计算也非通信；4 个 rank 中只有 3 个上报。"),
        ("n1 device 2: xid:48, double-bit error (xid:63 followed); drain the node, stop all processes on the GPU and reset"
         " it.", "n1 GPU 2：xid:48，double-bit error（随后出现 xid:63）；隔离节点，停止该 GPU 上的所有进程并复位。"),
        ("Job j stands still. Ranks 0-2 wait in all_reduce 12 of dp for rank 3, which never arrived; its stack stands at "
         "train.py:14 in main (confidence 95%).",
         "作业 j 停滞。rank 0-2 在 all_reduce 12 of dp 中等待始终未到的 rank 3；其调用栈停在 train.py:14 in main（把握 95%）。"),
    ],
)  # fmt: skip
def test_sentences_as_detectors_say_them(english: str, chinese: str) -> None:
    assert in_chinese(english) == chinese


def test_what_is_not_in_the_catalogue_is_left_to_the_caller() -> None:
    assert in_chinese("An operator wrote this by hand.") is None
    assert in_chinese("") is None
    assert in_chinese("x" * 20_000) is None


@pytest.mark.parametrize(
    "text",
    ["who has y = z; " * 130, "Loss of a is b at step c, " * 76, "a: b, c (" * 220, "x" * 100_000,
     "Loss of a is b at step c, " * 70 + "\n times its recent level d."],
)  # fmt: skip
def test_a_text_made_to_be_searched_for_minutes_is_passed_over_at_once(text: str) -> None:
    began_s = time.process_time()
    assert in_chinese(text) is None
    assert time.process_time() - began_s < 0.2
