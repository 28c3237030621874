"""A model's text side without transformers: its chat template rendered, and the result counted in tokens.

Gates run in a process that starts in milliseconds, and importing transformers takes ten seconds. It does two
things to a prompt: it renders the model's Jinja template and gives the text to the model's ``tokenizer.json``. Both are
done here by the same two libraries that it uses itself; a test compares the counts with the real processor's.

One thing is stricter: a template that asks for the date does not render, because the same plan would have another
prompt tomorrow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from explicit_learning.data.prompt import TEMPLATE_OPTIONS
from explicit_learning.errors import Context, found_text
from explicit_learning.files.strict_json import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from jinja2 import Template
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from tokenizers import Tokenizer

__all__ = ["IMAGE_TOKEN", "ModelText", "load_tokenizer", "special_tokens"]

CONTEXT = Context(gate="model", fix="restore the model's tokenizer files: prompts are counted with them")
# What Qwen's processor puts in an image's place, once for each of its tokens.
IMAGE_TOKEN = "<|image_pad|>"  # noqa: S105 - a token of text

# How many texts the tokenizer is given at once: enough for all cores, few enough to show progress.
BATCH = 1024
# Beside tokenizer.json, which lists most of them, these files name tokens: two by field, one by key.
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
ADDED_TOKENS_FILE = "added_tokens.json"
MAX_TEMPLATE_BYTES = 1 << 20
# A vocabulary of 250,000 tokens with its merges takes 20 MB.
MAX_TOKENIZER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """A model's chat template and tokenizer.

    Attributes:
        template: The compiled chat template.
        tokenizer: The model's tokenizer, neither padding nor truncating.
        special_tokens: The tokens that a template may name, such as ``eos_token``.
        control_tokens: All texts that transformers makes into one token each, whichever file of the model names them.
        template_file: The template's file, for faults.
    """

    template: Template
    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    control_tokens: frozenset[str]
    template_file: Path

    @classmethod
    def of_model(cls, folder: Path) -> ModelText:
        """Read a model folder's chat template and tokenizer.

        Raises:
            Refusal: If one of them is missing, or cannot be read.
        """
        file, source = _template_source(folder)
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        return cls(
            template=_compiled(source, file),
            tokenizer=tokenizer,
            special_tokens=special_tokens(folder / "tokenizer_config.json"),
            control_tokens=frozenset(added | _named_tokens(folder)),
            template_file=file,
        )

    def render(self, messages: list[dict[str, Any]], *, answered: bool = False) -> str:
        """Return a prompt's text up to where the model is to answer; each image is one `IMAGE_TOKEN`.

        Args:
            messages: The messages.
            answered: Whether the last one is the answer, so that nothing is to follow.

        Raises:
            Refusal: If the template refuses the messages.
        """
        from jinja2 import TemplateError

        try:
            return self.template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=not answered,
                **self.special_tokens,
                **TEMPLATE_OPTIONS,
            )
        except TemplateError as error:
            found, expected = f"a template error: {error}", "a template for system, image and text parts"
            raise CONTEXT.refusal(file=self.template_file, found=found, expected=expected) from None

    def counts(self, texts: Sequence[str], *, special: bool) -> Iterator[int]:
        """Yield how many tokens each text has.

        Args:
            texts: The texts.
            special: Whether to add what the tokenizer puts around a text, as the processor does for prompts.
        """
        for start in range(0, len(texts), BATCH):
            part = list(texts[start : start + BATCH])
            yield from map(len, self.tokenizer.encode_batch_fast(part, add_special_tokens=special))


def _template_source(folder: Path) -> tuple[Path, str]:
    """Return the chat template that a processor takes, and its file: the legacy file goes before the present one."""
    legacy = folder / "chat_template.json"
    if legacy.is_file():
        source = _settings(legacy).get("chat_template")
        if not isinstance(source, str):
            found, expected = found_text(source), "a chat template"
            raise CONTEXT.refusal(file=legacy, pointer="/chat_template", found=found, expected=expected)
        return legacy, source
    file = folder / "chat_template.jinja"
    try:
        return file, read_bytes(file, gate=CONTEXT.gate, max_bytes=MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        found, expected = f"byte {error.start} is not UTF-8", "a chat template in UTF-8"
        raise CONTEXT.refusal(file=file, found=found, expected=expected) from None


def _compiled(source: str, file: Path) -> Template:
    """Compile a template under the rules that transformers states for chat templates."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around an assistant's answer: it renders what it encloses."""

        tags = frozenset({"generation"})  # type: ignore[assignment] # jinja2 annotates a set and reads it only

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:  # noqa: ANN401 - any JSON value; json's own options
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise CONTEXT.refusal(file=file, found=f"not a Jinja template: {error}", expected="a chat template") from None


def load_tokenizer(file: Path) -> Tokenizer:
    """Return a model's tokenizer, neither padding nor truncating.

    Raises:
        ModuleNotFoundError: If the package tokenizers is not installed.
        Refusal: If the file cannot be read, or is not a tokenizer.
    """
    from tokenizers import Tokenizer

    data = read_bytes(file, gate=CONTEXT.gate, max_bytes=MAX_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except ValueError as error:
        found = f"not readable as a tokenizer: {error}"
        raise CONTEXT.refusal(file=file, found=found, expected="a tokenizer.json") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_tokens(file: Path) -> dict[str, str]:
    """Return the special tokens that a tokenizer's settings name, each as text.

    Raises:
        Refusal: If the file cannot be read, or is not a JSON object.
    """
    found: dict[str, str] = {}
    for name, value in _settings(file).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _named_tokens(folder: Path) -> set[str]:
    """Return the texts that the files beside a tokenizer make into tokens."""
    found: set[str] = set()
    for name in SETTINGS_FILES:
        settings = _settings(folder / name) if (folder / name).exists() else {}
        found.update(text for key, value in settings.items() if _names_tokens(key) for text in _texts(value))
    if (folder / ADDED_TOKENS_FILE).exists():
        found.update(_settings(folder / ADDED_TOKENS_FILE))
    return found


def _names_tokens(key: str) -> bool:
    return key.endswith(("_token", "special_tokens")) or key == "added_tokens_decoder"


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    """Yield the texts of a token, or of a list or an object of tokens."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and "content" in value:
        yield from _texts(value["content"])
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _settings(file: Path) -> dict[str, Any]:
    """Return a JSON object as transformers writes it; its ``model_max_length`` of 10³⁰ is not strict JSON."""
    try:
        settings = json.loads(read_bytes(file, gate=CONTEXT.gate))
    except (ValueError, RecursionError) as error:
        raise CONTEXT.refusal(file=file, found=f"not JSON: {error}", expected="a JSON object") from None
    if not isinstance(settings, dict):
        raise CONTEXT.refusal(file=file, found=found_text(settings), expected="a JSON object")
    return settings
