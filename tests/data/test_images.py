"""Images decoded on access, and kept."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageCms, ImageDraw

from explicit_learning.data.image_headers import bombs_are_errors
from explicit_learning.data.images import CACHE_VARIABLE, ImageStore, decode_guarded, decode_image
from explicit_learning.data.rows import ImageRef
from explicit_learning.errors import ExitCode, Refusal

if TYPE_CHECKING:
    from pathlib import Path

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


@pytest.fixture(autouse=True)
def _no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)


def colours() -> Image.Image:
    """Return 4 by 2 pixels with a red corner, a blue corner, and green elsewhere."""
    image = Image.new("RGB", (4, 2), GREEN)
    image.putpixel((0, 0), RED)
    image.putpixel((3, 1), BLUE)
    return image


def ref(path: Path, size: tuple[int, int]) -> ImageRef:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return ImageRef(image_index=0, path=path.name, sha256=digest, width=size[0], height=size[1])


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options: Any) -> Path:
    image.save(folder / name, **options)
    return folder / name


# Orientation → where the red pixel of the stored upper left corner is shown, after the EXIF standard (tag 274).
SHOWN_AT = {1: (0, 0), 2: (3, 0), 3: (3, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 3), 8: (0, 3)}


@pytest.mark.parametrize(("orientation", "place"), SHOWN_AT.items())
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, place: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode_image(saved(tmp_path, colours(), exif=exif))
    assert image.size == ((4, 2) if orientation < 5 else (2, 4))
    assert image.getpixel(place) == RED


def test_sixteen_bits_are_scaled_by_their_high_byte(tmp_path: Path) -> None:
    image = Image.new("I;16", (4, 1))
    for x, value in enumerate((0, 255, 0x1100, 65535)):
        image.putpixel((x, 0), value)
    decoded = decode_image(saved(tmp_path, image))
    assert [decoded.getpixel((x, 0)) for x in range(4)] == [(0,) * 3, (0,) * 3, (0x11,) * 3, (255,) * 3]


def test_transparent_pixels_are_shown_on_white(tmp_path: Path) -> None:
    drawing = Image.new("RGBA", (4, 2), (0, 0, 0, 0))
    drawing.putpixel((1, 1), (0, 0, 0, 255))
    drawing.putpixel((2, 1), (0, 0, 0, 128))
    shown = decode_image(saved(tmp_path, drawing))
    assert [shown.getpixel((x, 1)) for x in range(4)] == [WHITE, (0, 0, 0), (127, 127, 127), WHITE]


def test_palettes_are_resolved_with_their_transparency(tmp_path: Path) -> None:
    palette = colours().quantize(4)
    assert palette.mode == "P"
    assert decode_image(saved(tmp_path, palette)).tobytes() == colours().tobytes()
    index = palette.getpixel((0, 0))
    on_white = colours()
    on_white.putpixel((0, 0), WHITE)
    assert decode_image(saved(tmp_path, palette, transparency=index)).tobytes() == on_white.tobytes()
    grey = Image.new("L", (2, 1), 7)
    grey.putpixel((1, 0), 9)
    assert decode_image(saved(tmp_path, grey, transparency=9)).tobytes() == bytes([7] * 3 + [255] * 3)


def test_an_opaque_alpha_channel_changes_nothing(tmp_path: Path) -> None:
    assert decode_image(saved(tmp_path, colours().convert("RGBA"))).tobytes() == colours().tobytes()


def test_other_modes(tmp_path: Path) -> None:
    black_and_white = Image.new("1", (2, 1))
    black_and_white.putpixel((1, 0), 1)
    assert decode_image(saved(tmp_path, black_and_white)).getpixel((1, 0)) == WHITE
    assert decode_image(saved(tmp_path, Image.new("LA", (2, 1), (70, 255)))).getpixel((0, 0)) == (70, 70, 70)
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = decode_image(saved(tmp_path, cmyk, "a.jpg", quality=100)).getpixel((8, 8))
    assert isinstance(red, tuple)
    assert red[0] > 250
    assert max(red[1:]) < 5


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_eight_bit_modes_look_as_transformers_loads_them(tmp_path: Path, mode: str, orientation: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.image_utils import load_image

    image = Image.radial_gradient("L").resize((64, 48)).convert("RGB")
    ImageDraw.Draw(image).ellipse((8, 8, 30, 40), fill=(200, 30, 90))
    exif = Image.Exif()
    exif[0x0112] = orientation
    converted = image.quantize(32) if mode == "P" else image.convert(mode)
    path = saved(tmp_path, converted, "a.jpg" if mode == "CMYK" else "a.png", exif=exif)
    assert decode_image(path).tobytes() == load_image(str(path)).tobytes()


def test_a_colour_profile_changes_nothing(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    assert decode_image(saved(tmp_path, colours(), icc_profile=profile)).tobytes() == colours().tobytes()


def test_a_corrupt_image_names_its_row(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.effect_noise((64, 64), 50))
    image = ref(path, (64, 64))
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(Refusal) as refusal:
        ImageStore(tmp_path).load(image, row="train-7.full")
    (fault,) = refusal.value.faults
    assert fault.file == str(path)
    assert 'image 0 of row "train-7.full"' in fault.found
    assert "corrupt" in fault.found
    assert fault.exit_code == ExitCode.IO


@pytest.mark.parametrize(
    ("path", "found"), [("none.png", "no such file"), ("../a.png", "lead outside"), ("a.png", "4 by 2 pixels instead")]
)
def test_an_image_that_is_not_as_listed(tmp_path: Path, path: str, found: str) -> None:
    saved(tmp_path, colours())
    image = ImageRef(image_index=0, path=path, sha256="0" * 64, width=2, height=4)
    with pytest.raises(Refusal, match=found):
        ImageStore(tmp_path).load(image)


def test_images_are_kept_up_to_a_bound_and_the_oldest_use_goes_first(tmp_path: Path) -> None:
    refs = [ref(saved(tmp_path, Image.new("RGB", (4, 2), (shade, 0, 0)), f"{shade}.png"), (4, 2)) for shade in range(3)]
    store = ImageStore(tmp_path, max_bytes=2 * 4 * 2 * 3)
    first, second = store.load(refs[0]), store.load(refs[1])
    assert store.load(refs[0]) is first
    store.load(refs[2])
    assert store.load(refs[0]) is first
    for path in tmp_path.iterdir():
        path.unlink()
    assert store.load(refs[2]).getpixel((0, 0)) == (2, 0, 0)
    assert second.getpixel((0, 0)) == (1, 0, 0)
    with pytest.raises(Refusal):
        store.load(refs[1])


def test_an_image_beyond_the_bound_is_not_kept(tmp_path: Path) -> None:
    image = ref(saved(tmp_path, colours()), (4, 2))
    store = ImageStore(tmp_path, max_bytes=23)
    assert store.load(image) is not store.load(image)


def test_threads_that_want_one_image_decode_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [ref(saved(tmp_path, Image.new("RGB", (4, 2), (shade, 0, 0)), f"{shade}.png"), (4, 2)) for shade in range(3)]
    store, decoded = ImageStore(tmp_path), []

    def slowly(path: Path) -> tuple[Image.Image, bool]:
        decoded.append(path.name)
        time.sleep(0.05)
        return decode_guarded(path)

    monkeypatch.setattr("explicit_learning.data.images.decode_guarded", slowly)
    with bombs_are_errors(), ThreadPoolExecutor(8) as pool:
        images = list(pool.map(store.load, refs * 8))
    assert sorted(decoded) == ["0.png", "1.png", "2.png"]
    assert images == images[:3] * 8
    assert [image.getpixel((0, 0)) for image in images[:3]] == [(shade, 0, 0) for shade in range(3)]


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_other_threads_run_while_pillow_decodes(tmp_path: Path, name: str) -> None:
    """Nobody is made to let go here: this thread wakes up as often as the other one releases the interpreter's lock."""
    path, most = saved(tmp_path, Image.new("RGB", (2500, 2500), RED), name), 0
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1000)
        for _ in range(10):  # on a busy machine this thread wakes up late, and less often
            wakes = 0
            with bombs_are_errors(), ThreadPoolExecutor(1) as pool:
                decoded = pool.submit(decode_image, path)
                while not decoded.done():
                    time.sleep(0.0005)
                    wakes += 1
            assert decoded.result().size == (2500, 2500)
            most = max(most, wakes)
            if most >= 10:
                break
    finally:
        sys.setswitchinterval(before)
    assert most >= 10, "a file of one or two blocks: reading it releases the lock a few times only"


def test_an_image_that_one_thread_cannot_read_is_tried_by_the_next(tmp_path: Path) -> None:
    path = saved(tmp_path, colours())
    image, store, pixels = ref(path, (4, 2)), ImageStore(tmp_path), path.read_bytes()
    path.unlink()
    with pytest.raises(Refusal):
        store.load(image)
    path.write_bytes(pixels)
    assert store.load(image).tobytes() == colours().tobytes()


def test_threads_that_end_leave_the_warnings_of_the_process_alone(tmp_path: Path) -> None:
    """Each of them would put back the filters that it found, which are another thread's."""
    image = ref(saved(tmp_path, colours()), (4, 2))
    before = list(warnings.filters)
    with bombs_are_errors():
        inside = list(warnings.filters)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: decode_image(tmp_path / image.path), range(64)))
        assert list(warnings.filters) == inside
    assert list(warnings.filters) == before


def test_the_folder_serves_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    path = saved(tmp_path / "data", colours())
    image = ref(path, (4, 2))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    ImageStore(tmp_path / "data").load(image)
    path.unlink()
    assert ImageStore(tmp_path / "data").load(image).tobytes() == colours().tobytes()


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda _: b""])
def test_a_torn_or_changed_cache_file_is_made_again(tmp_path: Path, spoil: Any) -> None:
    image = ref(saved(tmp_path, colours()), (4, 2))
    cache = tmp_path / "cache"
    ImageStore(tmp_path, cache_folder=cache).load(image)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(spoil(whole))
    assert ImageStore(tmp_path, cache_folder=cache).load(image).tobytes() == colours().tobytes()
    assert file.read_bytes() == whole


def test_a_cache_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    image = ref(saved(tmp_path, colours()), (4, 2))
    (tmp_path / "file").write_text("in the way")
    assert ImageStore(tmp_path, cache_folder=tmp_path / "file" / "x").load(image).tobytes() == colours().tobytes()


def load_all(root: Path, cache: Path, refs: list[ImageRef]) -> bytes:
    """Load every image as one of several processes does; return a digest of all."""
    store = ImageStore(root, max_bytes=0, cache_folder=cache)
    return hashlib.sha256(b"".join(store.load(image).tobytes() for image in refs * 3)).digest()


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    shades = range(20)
    refs = [ref(saved(tmp_path, Image.new("RGB", (4, 2), (shade, 1, 2)), f"{shade}.png"), (4, 2)) for shade in shades]
    cache = tmp_path / "cache"
    expected = hashlib.sha256(b"".join(bytes([shade, 1, 2]) * 8 for shade in shades) * 3).digest()
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        results = pool.starmap(load_all, [(tmp_path, cache, refs)] * 8)
    assert results == [expected] * 8
    assert len(list(cache.iterdir())) == 20
