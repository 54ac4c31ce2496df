"""A flipped bit or a cut is found and named, or its byte stands in the published table: samples of tests/torture."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery.verify.verifier import verify
from tests.scan.small_broker import GENERATIONS, V5_CRC, Generation, SmallBroker
from tests.scan.small_stores import build
from tests.verify import unprotected
from tests.verify.damage import ESCAPED, FOUND, Patient, files, judge_cut, judge_loss
from tests.verify.damage_map import Place, places

SEED = 20261121
FLIPS = 20  # in each generation, besides those that show that the table lists nothing needlessly
CUTS = 4  # of each file
GOLDEN_FLIPS = 24

each = pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)


@pytest.fixture
def patient(generation: Generation, tmp_path: Path) -> Iterator[tuple[SmallBroker, Patient]]:
    store = tmp_path / "store"
    broker = build(generation, store)
    with Patient(store) as patient:
        yield broker, patient


@each
def test_an_untouched_store_has_no_finding(generation: Generation, tmp_path: Path) -> None:
    build(generation, tmp_path / "store")
    report = verify(tmp_path / "store")
    assert report.ok, [str(finding) for finding in report.findings]
    assert report.generation == ("state-table" if generation.state_table else "half-op")
    assert report.transactions["total"] == 5


@each
def test_an_end_that_lost_a_property_is_found(patient: tuple[SmallBroker, Patient]) -> None:
    """A flip behind a name takes its property out. An end of 5.4 and later lacks two of its half message: both."""
    broker, sick = patient
    published = unprotected.load()[broker.kind.name]
    names = [place for place in places(broker, sick.store) if place.role == "commit" and "name of" in place.field]
    assert names
    for place in names:
        outcome = sick.flip(place, place.stop - 1, 0)
        assert outcome == FOUND or published.get(place.key), f"{place.key}: {outcome}"


@pytest.mark.sample("5.3.3 with record CRC")
@each
def test_flipped_bits_are_found_or_published(patient: tuple[SmallBroker, Patient]) -> None:
    """At least one bit of every field of every file, and more of the larger ones."""
    broker, sick = patient
    published = unprotected.load()[broker.kind.name]
    rng = random.Random(SEED)
    found = places(broker, sick.store)
    every = list(unprotected.flips(found, SEED))
    chosen = {place.key: (place, rng.randrange(place.start, place.stop), rng.randrange(8)) for place in found}
    for place, at, bit in [*chosen.values(), *rng.sample(every, FLIPS)]:
        outcome = sick.flip(place, at, bit)
        if outcome == ESCAPED:
            listed = published.get(place.key, 0) & unprotected.mask(place, at, bit)
            assert listed, f"bit {bit} of byte {at} of {place.file} escapes, and {place.key} is not in the table"
        else:
            assert outcome == FOUND, f"bit {bit} of byte {at} of {place.file} ({place.key}): {outcome}"


@pytest.mark.sample("3.1.4", "5.3.3 with record CRC")
@each
def test_every_published_field_has_a_bit_that_escapes(patient: tuple[SmallBroker, Patient]) -> None:
    broker, sick = patient
    published = unprotected.load()[broker.kind.name]
    by_key: dict[str, list[tuple[Place, int, int]]] = {}
    for place, at, bit in unprotected.flips(places(broker, sick.store)):
        if published.get(place.key, 0) & unprotected.mask(place, at, bit):
            by_key.setdefault(place.key, []).append((place, at, bit))
    assert set(by_key) == set(published)
    for key, candidates in by_key.items():
        random.Random(SEED).shuffle(candidates)
        assert any(sick.flip(*flip) == ESCAPED for flip in candidates), (
            f"{key} is in the table, but every flip is found"
        )


def test_a_record_with_its_crc_has_no_unprotected_bit() -> None:
    assert not [key for key in unprotected.load()[V5_CRC.name] if key.startswith("CommitLog record")]


@pytest.mark.sample("3.1.4", "5.3.3 with record CRC")
@each
def test_cuts_are_found_or_unused(patient: tuple[SmallBroker, Patient]) -> None:
    """Every file at its edges and at some lengths between."""
    _, sick = patient
    rng = random.Random(SEED)
    for file, size, used in files(sick.store):
        sizes = {0, max(used - 1, 0), used, size - 1, *(rng.randrange(size) for _ in range(CUTS))}
        for length in sorted(length for length in sizes if length < size):
            judge_cut(sick, file, length, used)


@each
def test_missing_and_zeroed_files_are_found(patient: tuple[SmallBroker, Patient]) -> None:
    _, sick = patient
    for file, _, used in files(sick.store):
        judge_loss(sick, file, used)


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-clean", "rocketmq-5.3.3-clean"])
def test_flips_in_a_real_store(golden_copy: Callable[[str], Path], name: str) -> None:
    """Nothing is raised, and in a derived file whatever is in use is found."""
    store = golden_copy(name)
    shutil.rmtree(store / "config")
    rng = random.Random(SEED)
    derived = [
        file for file in files(store) if file[0].startswith(("consumequeue", "transaction", "index")) and file[2]
    ]
    commitlog = next(file for file in files(store) if file[0].startswith("commitlog"))
    with Patient(store) as sick:
        for number in range(GOLDEN_FLIPS):
            file, _, used = rng.choice(derived) if number % 2 else commitlog
            place = Place(file, "any", "any", 0, used)
            at, bit = rng.randrange(used), rng.randrange(8)
            outcome = sick.flip(place, at, bit)
            assert not outcome.startswith(("raised", "a vague")), f"{file} byte {at} bit {bit}: {outcome}"
            if file.startswith(("transaction", "index")):
                assert outcome != ESCAPED, f"{file} byte {at} bit {bit} escapes"


def test_the_manual_has_the_table() -> None:
    text = unprotected.PAGE.read_text(encoding="utf-8")
    assert text == unprotected.written(text, unprotected.load()), "run: python -m tests.verify.unprotected"


@each
@pytest.mark.parametrize("kind", ["index item", "redo log unit"])
def test_a_damaged_unit_does_not_take_others_along(patient: tuple[SmallBroker, Patient], kind: str) -> None:
    """One that seems to belong far behind is no end of what is compared: every finding is about its own record."""
    broker, sick = patient
    for place in places(broker, sick.store):
        if place.kind == kind and place.field == "commitlog_offset":
            with open(sick.store / place.file, "r+b") as file:
                file.seek(place.start)
                byte = file.read(1)[0]
                file.seek(place.start)
                file.write(bytes([byte ^ 0x40]))
                file.flush()
                findings = list(verify(sick.store).findings)
                file.seek(place.start)
                file.write(bytes([byte]))
            assert findings
            assert all(finding.commitlog_offset in (place.record, _far(place.record)) for finding in findings)


def _far(commitlog_offset: int | None) -> int:
    return (commitlog_offset or 0) ^ 0x40 << 56
