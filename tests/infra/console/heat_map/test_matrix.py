"""A matrix is the same however its rows came in chunks; tiles hold its extremes in any order of rows."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.console.heat_levels import HEADER, Values, compressed, tile_bytes
from irregulars.infra.console.heat_matrix import QUANTITIES, TILE, Baseline, HeatMatrix, extended, matrix_of

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

    return matrix_of(QUANTITIES["beyond"], chunks, values, GROUP, np.arange(len(values)) + 100, "v")


@given(st.integers(1, 30))
def test_chunks_change_nothing(each: int) -> None:
    np.testing.assert_array_equal(made(work(), each).levels, made(work()).levels)


@given(st.integers(15, 30), st.integers(0, 5))
def test_what_is_added_is_held_against_the_same_baseline_and_the_rest_is_taken_over(kept: int, dropped: int) -> None:
    values, base = work(), made(work()[:kept])
    columns = np.array([*range(dropped, kept), *[-1] * (30 - kept)])
    grown = extended(base, QUANTITIES["beyond"], columns, values[kept:], GROUP, "w")
    np.testing.assert_array_equal(grown.levels[: kept - dropped], base.levels[dropped:])
    assert grown.baseline is base.baseline
    assert grown.scale.low == base.scale.low
    assert grown.scale.high == max(grown.levels.max(), base.scale.low + 1)
    whole = extended(base, QUANTITIES["beyond"], np.full(30, -1), values, GROUP, "w")
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
