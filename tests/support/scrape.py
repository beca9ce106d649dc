"""What a server tells Prometheus, read as Prometheus does."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import httpx
from prometheus_client.parser import text_string_to_metric_families

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Scraped:
    values: dict[Series, float]
    kinds: dict[str, str]

    def value(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels; 0 where there is none."""
        wanted = set(labels.items())
        return sum(value for (found, having), value in self.values.items() if found == name and wanted <= having)

    def has(self, name: str, **labels: str) -> bool:
        wanted = set(labels.items())
        return any(found == name and wanted <= having for found, having in self.values)

    def since(self, before: Scraped) -> Scraped:
        """What has been added to each."""
        return Scraped({key: value - before.values.get(key, 0.0) for key, value in self.values.items()}, self.kinds)

    def counts(self, histogram: str) -> list[tuple[float, int]]:
        """How many values each bucket has, by its upper bound."""
        below = sorted(
            (float(dict(labels)["le"]), round(value))
            for (name, labels), value in self.values.items()
            if name == f"{histogram}_bucket"
        )
        return [(bound, count - less) for (_, less), (bound, count) in pairwise([(0.0, 0), *below])]

    def mean(self, histogram: str) -> float:
        return self.value(f"{histogram}_sum") / self.value(f"{histogram}_count")

    def bucket_of_quantile(self, histogram: str, quantile: float) -> tuple[float, float]:
        """Between which bounds it lies."""
        counts = self.counts(histogram)
        wanted = quantile * sum(count for _, count in counts)
        seen, lower = 0, 0.0
        for bound, count in counts:
            seen += count
            if seen >= wanted:
                return lower, bound
            lower = bound
        raise AssertionError(f"{histogram} has no values")


def parse(text: str) -> Scraped:
    families = list(text_string_to_metric_families(text))
    values = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    return Scraped(values, {family.name: family.type for family in families})


def scrape(url: str, **headers: str) -> Scraped:
    response = httpx.get(f"{url}/metrics", headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    return parse(response.text)
