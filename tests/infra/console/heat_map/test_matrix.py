"""Which cells are beyond usual; a matrix is the same however its rows came in chunks, and tiles hold its extremes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.console.heat_levels import HEADER, Values, compressed, tile_bytes
from irregulars.infra.console.heat_matrix import (
    QUANTITIES,
    TILE,
    Baseline,
    HeatMatrix,
    beyond_peers,
    extended,
    low_of,
    matrix_of,
    shown_of,
    usual_of,
)

GROUP = np.zeros(700, dtype=np.int64)


def work(slow: tuple[int, int] = (11, 650)) -> Values:
    values = np.random.default_rng(3).normal(1e8, 1e6, (30, 700)).astype(np.float32)
    values[slow] = 3e8
    values[4, 5] = np.nan
    return values


def made(values: Values, each: int = 30) -> HeatMatrix:
    def chunks() -> Iterator[tuple[int, Values]]:
        for first in range(0, len(values), each):
            yield first, values[first : first + each]

    return matrix_of(QUANTITIES["beyond"], chunks, values, GROUP, np.arange(len(values)) + 100)


@given(st.integers(1, 30))
def test_chunks_change_nothing(each: int) -> None:
    np.testing.assert_array_equal(made(work(), each).levels, made(work()).levels)


@given(st.integers(15, 30), st.integers(0, 5))
def test_what_is_added_is_held_against_the_same_baseline_and_the_rest_is_taken_over(kept: int, dropped: int) -> None:
    values, base = work(), made(work()[:kept])
    columns = np.array([*range(dropped, kept), *[-1] * (30 - kept)])
    grown = extended(base, QUANTITIES["beyond"], columns, values[kept:], GROUP)
    np.testing.assert_array_equal(grown.levels[: kept - dropped], base.levels[dropped:])
    assert grown.baseline is base.baseline
    assert grown.scale.low == base.scale.low
    assert grown.scale.high == max(grown.levels.max(), base.scale.low + 1)
    whole = extended(base, QUANTITIES["beyond"], np.full(30, -1), values, GROUP)
    np.testing.assert_array_equal(grown.levels, whole.levels[dropped:])


def test_a_baseline_serves_until_half_of_the_window_is_new() -> None:
    baseline = Baseline(np.zeros(1, np.float32), 1.0, first=100, last=199)
    assert baseline.fits(np.arange(100, 300))
    assert not baseline.fits(np.arange(100, 302))
    assert baseline.fits(np.arange(150, 250))
    assert not baseline.fits(np.arange(151, 251))


def test_a_tile_without_its_first_columns_is_the_rest_of_it() -> None:
    matrix, rows = made(work()), np.arange(700)
    for per_bin in ((1, 1), (4, 2)):
        whole, rest = matrix.tile(rows, per_bin, (0, 0)), matrix.tile(rows, per_bin, (0, 0), skipped=7)
        for name in ("levels", "row", "column"):
            np.testing.assert_array_equal(getattr(rest, name), getattr(whole, name)[:, 7:])


@given(st.permutations(range(700)), st.sampled_from([1, 2, 8, 256, 1024]))
def test_the_extreme_is_in_one_of_the_tiles_in_any_order(order: list[int], ranks: int) -> None:
    matrix, rows = made(work()), np.array(order)
    tiles = [(at, matrix.tile(rows, (ranks, 4), (at, 0))) for at in range(-(-700 // (ranks * TILE)))]
    at, tile = max(tiles, key=lambda one: int(one[1].levels.max()))
    up, across = np.unravel_index(tile.levels.argmax(), tile.levels.shape)
    place = (at * TILE + up) * ranks + tile.row[up, across]
    assert (rows[place], across * 4 + tile.column[up, across]) == (650, 11)


def test_the_strangest_are_far_beyond_or_often_beyond() -> None:
    values = work()
    values[:, 7] += 8e6
    values[1, 20:60] = 2e8  # forty ranks that were very slow once
    rows = [one.row for one in made(values).strangest()]
    assert rows[0] == 650
    assert rows[1] == 7
    assert len(rows) == len(set(rows)) == 10


def test_a_tile_s_bytes_hold_it_all() -> None:
    matrix = made(work())
    tile = matrix.tile(np.arange(700), (2, 1), (0, 0))
    body = tile_bytes(tile, matrix.scale, (2, 1))
    low, high, rows, columns, width, _ = HEADER.unpack(body[:32])
    assert (rows, columns, width) == (350, 30, 1)
    assert low < high
    codes, row, column = np.frombuffer(body[32:], np.uint8).reshape(3, rows, columns)
    np.testing.assert_array_equal(codes, matrix.scale.codes_of(tile.levels))
    np.testing.assert_array_equal(row, tile.row)
    np.testing.assert_array_equal(column, tile.column)
    large = tile_bytes(matrix.tile(np.arange(700), (512, 1), (0, 0)), matrix.scale, (512, 1))
    assert len(large) == 32 + 2 * 30 * (1 + 2 + 2)


def test_a_body_is_compressed_as_its_reader_accepts() -> None:
    body = b"usual " * 1_000
    assert compressed(body, "") == (body, "")
    assert compressed(body, "gzip;q=0, br") == (body, "")
    packed, name = compressed(body, "gzip, deflate")
    assert (gzip.decompress(packed), name) == (body, "gzip")
    packed, name = compressed(body, "gzip, br, zstd")
    assert (pa.Codec("zstd").decompress(packed, len(body), asbytes=True), name) == (body, "zstd")
    assert compressed(b"small", "gzip") == (b"small", "")


BEYOND = QUANTITIES["beyond"]
STAGES = np.repeat([0, 1], 8)


def healthy(iterations: int = 40, seed: int = 5) -> Values:
    """Work of 16 ranks in two stages, the second of which works half as long again, with 1 % noise."""
    noise = np.random.default_rng(seed).normal(1, 0.01, (iterations, 16))
    return (1e8 * (1 + 0.5 * STAGES) * noise).astype(np.float32)


def shown(work: Values) -> tuple[Values, float]:
    values = shown_of(BEYOND, work, usual_of(work), STAGES)
    return values, low_of(BEYOND, values)


def test_a_healthy_job_is_as_usual_nearly_everywhere_and_a_fixed_culprit_a_row() -> None:
    values, low = shown(healthy())
    assert (values > low).mean() < 0.02
    assert low < 0.06e8
    work = healthy()
    work[:, 3] *= 1.3
    values, low = shown(work)
    assert (values[:, 3] > low).all()
    assert (np.delete(values, 3, axis=1) > low).mean() < 0.02


def test_a_culprit_that_is_usually_quick_is_seen_when_it_turns_as_slow_as_its_peers() -> None:
    work = healthy()
    work[:, 3] *= 0.7
    work[30:, 3] /= 0.7
    values, low = shown(work)
    assert (values[30:, 3] > low).all()
    assert not (values[:30, 3] > low).any()


def test_a_change_for_all_is_nobody_s_excess_but_shows_against_their_own_usual() -> None:
    work = healthy()
    work[20] *= 1.5
    values, low = shown(work)
    assert (values[20] > low).mean() < 0.2
    own = shown_of(QUANTITIES["own"], work, usual_of(work), STAGES)
    assert (own[20] > 0.3e8).all()


@given(st.permutations(range(16)), st.sampled_from(sorted(QUANTITIES)))
def test_renaming_ranks_renames_what_is_shown(order: list[int], name: str) -> None:
    work = healthy(7)
    work[3, 5] = np.nan
    one = shown_of(QUANTITIES[name], work, usual_of(work), STAGES)
    other = shown_of(QUANTITIES[name], work[:, order], usual_of(work[:, order]), STAGES[order])
    np.testing.assert_allclose(other, one[:, order], atol=64)  # float32 at 1.5e8


@given(st.sampled_from(sorted(QUANTITIES)), st.integers(0, 2**32 - 1))
def test_a_cell_is_missing_where_nothing_is_stored_and_nowhere_else(name: str, seed: int) -> None:
    work = healthy(6)
    work[np.random.default_rng(seed).random(work.shape) < 0.3] = np.nan
    values = shown_of(QUANTITIES[name], work, usual_of(work), STAGES)
    assert (np.isnan(values) == np.isnan(work)).all()


def test_a_group_too_small_for_a_median_is_held_against_all_and_a_scale_has_a_beginning_without_cells() -> None:
    work = np.full((2, 6), 100, dtype=np.float32)
    work[:, 5] = 900
    np.testing.assert_array_equal(beyond_peers(work, np.array([0, 0, 0, 0, 0, 1]))[:, 5], [800, 800])
    assert low_of(BEYOND, np.full((2, 2), np.nan, dtype=np.float32)) == BEYOND.least
