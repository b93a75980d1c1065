"""StreamingLLM (Xiao et al. 2023, arXiv 2309.17453): the first and the latest tokens. The memory's `sinks` are the first."""

from typing import Literal, override

from mnemax.layers.retention import Ranking, RankingConfig


class StreamingConfig(RankingConfig):
    """All tokens rank alike, and among equals the older goes."""

    kind: Literal["streaming"] = "streaming"

    @override
    def build(self, model, projection, init) -> Ranking:
        return Ranking()
