"""Exceptions that no argument can prevent: names that exist nowhere, and calls without what a layer requires."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import re
from types import ModuleType

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling.exceptions import (
    describe_exception,
    own_frames,
    raising_frame,
    raising_line,
)
from heedful.conformance.recording.assignments import variables_read
from heedful.conformance.recording.source import imported_names, parsed, parsed_file
from heedful.conformance.recording.target_source import methods_of

PYTHON_FUNCTION: re.Pattern[str] = re.compile(r"must be Tensor, not builtin_function_or_method")
UNFIT_CALL: re.Pattern[str] = re.compile(
    r"(\w+)\.forward\(\) (missing \d+ required|got an unexpected keyword|takes )"
)
"""What Python says of a call with other arguments than a layer takes."""
STARRED: re.Pattern[str] = re.compile(r"[(,] *\*")


def is_missing_name(error: BaseException) -> bool:
    """Check whether code reads a name or an attribute that exists nowhere, whatever its arguments are.

    A name of a function of Python that is given to PyTorch as a tensor counts too, and so does a call of a layer of its
    own without an argument that the layer requires.

    Names that the file imports in one of its branches may be missing on this machine alone. An attribute counts if it
    is one of an imported file, of a module of the target or of a computed tensor, because what an argument should have
    is unknown.
    """
    frame = raising_frame(error)
    if frame is None or isinstance(error, UnboundLocalError):
        return False
    if isinstance(error, NameError):
        source = parsed_file(frame.f_code.co_filename)
        nodes = () if source is None else source.nodes
        imported = {name for node in nodes for name in imported_names(node)}
        return error.name not in imported and not hasattr(builtins, error.name or "")
    if isinstance(error, TypeError):
        return _takes_function_for_tensor(error) or _omits_argument(error)
    if not isinstance(error, AttributeError) or error.name is None:
        return False
    owner = error.obj
    if isinstance(owner, ModuleType):  # the parts of torch in C differ between machines
        return owner.__name__ != "torch._C"
    if isinstance(owner, nn.Module):
        known = any(error.name in vars(cls) for cls in type(owner).__mro__)
        return not known and not _is_set_before(owner, error.name)
    return isinstance(owner, Tensor) and (
        owner.grad_fn is not None or not _is_of_argument(owner, error)
    )


def _takes_function_for_tensor(error: TypeError) -> bool:
    """Check whether PyTorch receives a function of Python, such as `input`, because no variable has its name."""
    frame, line = own_frames(error)[-1]
    if not PYTHON_FUNCTION.search(describe_exception(error)):
        return False
    read = set(variables_read(frame.f_code.co_filename, line)) - {*frame.f_globals, *frame.f_locals}
    return any(inspect.isbuiltin(getattr(builtins, name, None)) for name in read)


def _omits_argument(error: TypeError) -> bool:
    """Check whether a method calls a layer that its own class has made with other arguments than the layer takes."""
    frame, place = own_frames(error)[-1][0], raising_line(error)
    layer, source = UNFIT_CALL.match(str(error)), parsed(type(frame.f_locals.get("self")))
    if layer is None or place is None or STARRED.search(place.source):
        return False
    calls = [] if source is None else [it.func for it in source.nodes if isinstance(it, ast.Call)]
    return any(isinstance(it, ast.Name) and it.id == layer[1] for it in calls)


def _is_set_before(module: nn.Module, name: str) -> bool:
    """Check whether a method that callers call before `forward`, such as init_states, sets an attribute."""
    methods = (it for it in methods_of(module) if it.__name__ not in ("__init__", "forward"))
    return any(
        it.opname == "STORE_ATTR" and it.argval == name
        for method in methods
        for it in dis.get_instructions(method)
    )


def _is_of_argument(tensor: Tensor, error: BaseException) -> bool:
    """Check whether a tensor is one that a function on the way to an exception was given, or an item of one."""
    for frame, _ in own_frames(error):
        count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
        given = [frame.f_locals.get(name) for name in frame.f_code.co_varnames[:count]]
        tensors = (it for it in pytree.tree_leaves(given) if isinstance(it, Tensor))
        if any(it is tensor or _is_item(tensor, it) for it in tensors):
            return True
    return False


def _is_item(tensor: Tensor, of: Tensor) -> bool:
    """Check whether a tensor is an item of another one, as `groups[0]` or `group` in a loop is."""
    shares = tensor._base is not None and tensor._base is (of if of._base is None else of._base)
    outer = of.dim() - tensor.dim()
    return shares and outer > 0 and of.shape[outer:] == tensor.shape
