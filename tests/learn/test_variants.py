"""Seeds: stable over time, the same for one person's spellings, different between people and exercises."""

from __future__ import annotations

from staxlab.learn.variants import BaseVariant, generator, seed_of, variant_for


def test_a_seed_never_changes():
    """A student must find the same values next term: this number is part of the contract."""
    assert seed_of("ada", "ex01") == 227843597538774


def test_spelling_of_the_id_does_not_matter_and_persons_do():
    assert seed_of(" Ada\n", "ex01") == seed_of("ada", "ex01")
    seeds = {seed_of(f"student{i}", f"ex{j:02d}") for i in range(200) for j in range(5)}
    assert len(seeds) == 1000 and all(0 <= seed < 2**48 for seed in seeds)


def test_purposes_draw_independently():
    assert generator(1, "a").random() == generator(1, "a").random() != generator(1, "b").random()


def test_without_a_seed_the_chapters_values():
    class Fixed(BaseVariant):
        pass

    assert variant_for(Fixed, None) == variant_for(Fixed, 5) == Fixed()
