"""`draft:` in models.yaml: which smaller model writes ahead for a larger one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import Field

from .access import Name
from .strict import Strict


class Draft(Strict):
    """A model with the same vocabulary that proposes tokens, which this one then checks several at a time."""

    model: Name = Field(description="name or alias of another model in this file")
    tokens: int = Field(8, ge=1, le=63, description="most tokens proposed at a time; how many pay is measured")


def check_drafts(drafts: Mapping[str, Draft | None], resolve: Callable[[str], str | None]) -> None:
    """`drafts`: those of all models, by name. Raises ValueError."""
    for name, draft in drafts.items():
        if draft is None:
            continue
        found = resolve(draft.model)
        if found is None:
            known = ", ".join(other for other in drafts if other != name)
            raise ValueError(f"models.{name}.draft.model: there is no model {draft.model!r}; there are: {known}")
        if found == name:
            raise ValueError(f"models.{name}.draft.model: a model can't draft for itself")
        if drafts[found] is not None:
            raise ValueError(f"models.{name}.draft.model: {found!r} has a draft of its own")
