"""Register what a module holds: tensors as buffers, and layers and parameters of a list as submodules."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import code


def as_buffer(site: Site) -> Iterator[Edit]:
    """Register a tensor that is a plain attribute as a buffer."""
    match site.small:
        case (
            cst.Assign(
                targets=[cst.AssignTarget(cst.Attribute(value=cst.Name("self"), attr=name))],
                value=value,
            ) as small
        ):
            quote = "'" if site.uses("register_buffer('") else '"'
            call = (
                f"self.register_buffer({quote}{name.value}{quote}, {code(value)}, persistent=False)"
            )
            yield {small: cst.Expr(cst.parse_expression(call))}


def as_submodules(site: Site) -> Iterator[Edit]:
    """Keep layers, or parameters, in a list or dict of torch.nn that registers them."""
    match site.small:
        case cst.Assign(
            targets=[cst.AssignTarget(cst.Attribute(value=cst.Name("self")))], value=value
        ):
            containers = (
                ("ModuleDict", "ParameterDict")
                if isinstance(value, cst.Dict | cst.DictComp)
                else ("ModuleList", "ParameterList")
            )
            prefix = "nn" if site.uses("nn.") else "torch.nn"
            for container in containers:
                call = f"{prefix}.{container}({code(value)})"
                yield {value: cst.parse_expression(call)}
