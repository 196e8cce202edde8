import itertools

import numpy as np

from testbed.worker.datasets import batches, digits


def _take(count: int, *, rank: int, num_workers: int, batch_size: int = 64, seed: int = 1) -> np.ndarray:
    dealt = batches(num_images=1797, batch_size=batch_size, rank=rank, num_workers=num_workers, seed=seed)
    return np.stack(list(itertools.islice(dealt, count)))


def test_workers_together_see_what_one_process_with_the_whole_batch_sees() -> None:
    whole = _take(40, rank=0, num_workers=1, batch_size=256)
    parts = [_take(40, rank=rank, num_workers=4) for rank in range(4)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


def test_every_epoch_shows_every_image_once_in_another_order() -> None:
    seen = _take(1797 * 2, rank=0, num_workers=1, batch_size=1).ravel()
    first, second = seen[:1797], seen[1797:]
    assert sorted(first) == sorted(second) == list(range(1797))
    assert not np.array_equal(first, second)


def test_a_batch_may_be_larger_than_the_data_set() -> None:
    batch = _take(1, rank=0, num_workers=1, batch_size=4000)[0]
    counts = np.bincount(batch, minlength=1797)
    assert counts.min() >= 2
    assert counts.max() <= 3


def test_the_seed_decides_the_order() -> None:
    assert np.array_equal(_take(3, rank=0, num_workers=2, seed=7), _take(3, rank=0, num_workers=2, seed=7))
    assert not np.array_equal(_take(3, rank=0, num_workers=2, seed=7), _take(3, rank=0, num_workers=2, seed=8))


def test_digits_are_normalised() -> None:
    dataset = digits()
    assert dataset.images.shape == (1797, 1, 8, 8)
    assert dataset.images.dtype == np.float32
    assert abs(float(dataset.images.mean())) < 1e-5
    assert abs(float(dataset.images.std()) - 1) < 1e-5
    assert set(dataset.labels) == set(range(10))


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    images = np.asarray(theirs.images, dtype=np.float32)[:, np.newaxis]
    dataset = digits()
    assert dataset.images.dtype == np.float32
    assert dataset.images.tobytes() == ((images - images.mean()) / images.std()).tobytes()
    assert dataset.labels.dtype == np.int64
    assert np.array_equal(dataset.labels, theirs.target)
