"""Calls of arrays that are split over devices: which dimensions of a call's arrays may be split together.

A factor is a dimension of the call: "b" (batch), "s" (tokens), "h0" (heads of tensors[0]), "g0" (groups). Each dimension of
each array is a factor, or None if every device needs all of it. Each device makes the call for its part. The gradients of
tables and weights, which are sums over split dimensions, are then summed over the devices.
"""

import functools

import jax
import numpy
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._options import ARRAYS
from .._spec import DIMS
from ._call import Arguments, Results, arguments_of, check, flatten, launch


def _batch_of(size, sizes):
    return "b" if size == sizes["b"] and size > 1 else None


class Factors:
    """The factors of a call of arrays with these shapes. `arguments` and `results` have a tuple of factors for each array
    that is present, in order. A pair of factors is one dimension that combines both."""

    def __init__(self, call, shapes):
        spec, given = call.spec, arguments_of(call, shapes)
        self.call, self.dims = call, DIMS[spec.layout]
        batch = 1 if self.dims.batch is None else given.srcs[0].shape[self.dims.batch]
        self.sizes = {"b": batch, "s": given.srcs[0].shape[self.dims.tokens]}
        for i, x in enumerate(given.srcs):
            self.sizes["h%d" % i] = x.shape[self.dims.heads]
            if self.dims.groups is not None:
                self.sizes["g%d" % i] = x.shape[self.dims.groups]
        self.srcs = [self._of_tensor(i) for i in range(len(given.srcs))]
        tables = {name: self._of_side(name, getattr(given.side, name)) for name in call.side}
        of_weights = [None if weight is None else self._of_weight(i, weight) for i, weight in enumerate(given.weights)]
        of_rstds = [self._of_rstd(i) for i in range(len(given.srcs))]
        pick = lambda factors, present: [one if there else None for one, there in zip(factors, present)]  # noqa: E731
        none = (False,) * len(given.srcs)
        rstd, d_weight = call.rstd or none, call.d_weight or none
        table = tables.get("freqs", tables.get("cos"))
        self.results = Results(
            pick(self.srcs, call.dst),
            table if call.d_freqs else None,
            pick(of_rstds, none if call.backward else rstd),
            pick(of_weights, d_weight),
        )
        of_side = [tables[name] for name in ARRAYS if name in tables]
        of_read = pick(of_rstds, rstd if call.backward else none)
        self.arguments = Arguments(self.srcs, pick(self.srcs, call.forward_src), of_side, of_weights, of_read)

    def counts_tokens(self):
        """Whether positions are counted, so that each part of the tokens needs the position of its first token."""
        return "position_ids" not in self.call.side

    def _tokens(self):
        can_split = "cu_seqlens" not in self.call.side and self.call.spec.cp_size == 1
        return "s" if can_split else None

    def _is_of_token(self, i):
        return bool(self.call.spec.norms) and self.call.spec.norms[i].scope == "token"

    def _heads(self, i):
        """Returns the factors of groups and of heads."""
        if self.call.spec.shared_heads[i] or self._is_of_token(i):
            return None, None
        return ("g%d" % i, None) if self.dims.groups is not None else (None, "h%d" % i)

    def _of_tensor(self, i):
        factors = [None] * len(self.call.spec.layout)
        groups, heads = self._heads(i)
        for dim, factor in (
            (self.dims.batch, "b" if self.sizes["b"] > 1 else None),
            (self.dims.tokens, self._tokens()),
            (self.dims.groups, groups),
            (self.dims.heads, heads),
        ):
            if dim is not None:
                factors[dim] = factor
        return tuple(factors)

    def _of_side(self, name, array):
        shape, factors = array.shape, [None] * len(array.shape)
        if name == "position_ids":
            factors[-1] = self._tokens()
            if len(shape) > 1:
                factors[-2] = _batch_of(shape[-2], self.sizes)
        elif name == "start_positions" and "cu_seqlens" not in self.call.side:
            factors[0] = _batch_of(shape[0], self.sizes)
        elif name in ("freqs", "cos", "sin") and len(shape) > 2:
            factors[-3] = _batch_of(shape[-3], self.sizes)
        return tuple(factors)

    def _of_weight(self, i, weight):
        groups, heads = self._heads(i)
        rank = len(weight.shape)
        return (None,) if rank == 1 else (heads, None) if rank == 2 else (groups, heads, None)

    def _of_rstd(self, i):
        rows = ("b" if self.sizes["b"] > 1 else None), self._tokens()
        if self._is_of_token(i):
            return rows
        groups, heads = self._heads(i)
        return (*rows, (groups, "h%d" % i) if groups else heads)

    # ---- how a mesh splits them ----

    def axes_of(self, specs, mesh_shape):
        """Returns {factor: mesh axes} from the PartitionSpecs of the tensors. A factor is split as in the first tensor
        that splits it. A mesh axis that splits one dimension of a tensor splits no other dimension of it."""
        axes = {}
        for factor in ("b", "s", *sorted(set(self.sizes) - {"b", "s"})):
            for factors, spec in zip(self.srcs, specs):
                if factor not in factors or factor in axes:
                    continue
                used = {axis for other in factors for axis in axes.get(other, ())}
                entry = spec[factors.index(factor)] if factors.index(factor) < len(spec) else None
                found = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
                parts = 1
                for axis in found:
                    parts *= mesh_shape[axis]
                if found and not used & set(found) and self.sizes[factor] % parts == 0:
                    axes[factor] = found
        if self.call.d_freqs and len({self._head_axes(axes, i) for i in range(len(self.srcs))}) > 1:
            # Heads are not split: the sum over the devices would count the heads of some tensors several times.
            axes = {factor: found for factor, found in axes.items() if factor in "bs"}
        return axes

    def _head_axes(self, axes, i):
        return axes.get("g%d" % i, axes.get("h%d" % i, ()))

    @staticmethod
    def spec_of(factors, axes):
        """Returns the PartitionSpec of an array with these factors."""
        entries = [axes.get(factor[0] if isinstance(factor, tuple) else factor) for factor in factors]
        return PartitionSpec(*(entry if entry is None or len(entry) > 1 else entry[0] for entry in entries))

    def summed_axes(self, axes):
        """Returns, as Results, the mesh axes over which each result must be summed."""
        rows = [*axes.get("b", ()), *axes.get("s", ())]

        def of(factors, i):
            every = [*rows, *self._head_axes(axes, i)]
            kept = {axis for factor in factors for axis in axes.get(factor, ())}
            return tuple(axis for axis in every if axis not in kept)

        return Results(
            [() if one else None for one in self.results.dsts],
            of(self.results.d_freqs, 0) if self.results.d_freqs is not None else None,
            [() if one else None for one in self.results.rstds],
            [of(one, i) if one else None for i, one in enumerate(self.results.d_weights)],
        )

    # ---- Shardy's rule ----

    def rule(self):
        """Returns the text of the rule, and its keyword arguments."""
        whole, sizes = [], {}  # `whole`: the factors that are not split, in the order in which they occur

        def word(factor):
            if factor is None:
                whole.append("r%d" % len(whole))
                return whole[-1]
            if isinstance(factor, tuple):
                outer, inner = factor[0], "i" + factor[1]
                if inner not in sizes:
                    whole.append(inner)
                    sizes[inner] = self.sizes[factor[1]]
                return "(%s %s)" % (outer, inner)
            return factor

        def text(factors):
            return ", ".join(" ".join(map(word, one)) for one in flatten_factors(factors))

        return "%s -> %s" % (text(self.arguments), text(self.results)), dict(need_replication_factors=tuple(whole), **sizes)


def flatten_factors(factors):
    """Returns the factors of each array that is present. (The factors of d_freqs are a tuple, not a list of arrays.)"""
    flat = []
    for given in factors:
        flat += [given] if isinstance(given, tuple) else [one for one in given or () if one is not None]
    return flat


def shift(call, flat, axes):
    """Returns the call and its arguments for one device, with positions that start at the first token of its part."""
    given = arguments_of(call, flat)
    dims = DIMS[call.spec.layout]
    shape = given.srcs[0].shape
    first = jax.lax.axis_index(axes) * shape[dims.tokens]
    starts = given.side.start_positions
    if starts is None:
        starts = jax.numpy.zeros((1 if dims.batch is None else shape[dims.batch],), jax.numpy.int32)
    side = given.side._replace(start_positions=starts + first.astype(starts.dtype))
    names = tuple(name for name in ARRAYS if getattr(side, name) is not None)
    return call._replace(side=names), flatten(given._replace(side=side))


# ---- one call on many devices ----


def each(call, factors, axes, make=launch):
    """Returns the function that makes the call on each device for its part."""
    summed = flatten_factors(factors.summed_axes(axes))

    def run(*flat):
        local, flat = shift(call, flat, axes["s"]) if "s" in axes and factors.counts_tokens() else (call, flat)
        return tuple(jax.lax.psum(y, over) if over else y for y, over in zip(make(local, flat), summed))

    return run


@functools.lru_cache(maxsize=1024)
def _partitioned(call):
    """Returns a function that makes the call. XLA may split its arrays over devices."""

    @custom_partitioning
    def trope_rotate(*flat):
        return tuple(launch(call, flat))

    def partition(mesh, arguments, results):
        factors, axes = Factors(call, arguments), {}
        if mesh.empty:  # no array of the program is split
            devices = sorted(arguments[0].sharding.device_set, key=lambda device: device.id)
            mesh = Mesh(numpy.array(devices), ("devices",))
        else:
            axes = factors.axes_of([x.sharding.spec for x in arguments[: len(call.dst)]], mesh.shape)
        place = lambda factors_of: tuple(  # noqa: E731
            NamedSharding(mesh, factors.spec_of(one, axes)) for one in flatten_factors(factors_of)
        )
        return mesh, each(call, factors, axes), place(factors.results), place(factors.arguments)

    def rule(mesh, argument_types, result_types):
        arguments = [jax.ShapeDtypeStruct(tuple(t.shape), jax.numpy.float32) for t in argument_types]
        return Factors(call, arguments).rule()

    trope_rotate.def_partition(partition=partition, sharding_rule=rule)
    return trope_rotate


def lower(*flat, call):
    """Makes a call of arrays that may be split over devices."""
    mesh = mesh_of(flat)
    factors, axes = split_of(call, flat, mesh)
    if axes:
        specs, results = specs_of(factors, axes)
        split = jax.shard_map(
            each(call, factors, axes), mesh=mesh, in_specs=specs, out_specs=results, axis_names=set(mesh.explicit_axes),
            check_vma=False,  # type_results has said how the results are split
        )  # fmt: skip
        return split(*reshard(flat, mesh, specs))
    # XLA cannot ask for a partition inside a shard_map over a part of the mesh, and splits no array of explicit types.
    if mesh.auto_axes and not mesh.manual_axes or not (mesh.manual_axes or mesh.explicit_axes):
        return _partitioned(call)(*flat)
    return tuple(launch(call, flat))


# ---- types ----


def type_of(x):
    """Returns the type of an array, or the type that x is."""
    return x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x)


def mesh_of(arrays):
    """Returns the mesh of the types of arrays (or of their types)."""
    meshes = [type_of(x).sharding.mesh for x in arrays]
    return next((mesh for mesh in meshes if not mesh.empty), jax.sharding.get_abstract_mesh())


def entries_of(x):
    """Returns the mesh axes of each dimension of an array whose type says how it is split."""
    spec = tuple(type_of(x).sharding.spec)
    return spec + (None,) * (x.ndim - len(spec))


def axes_in(spec):
    """Returns the mesh axes in a PartitionSpec."""
    return {axis for entry in spec if entry is not None for axis in (entry if isinstance(entry, tuple) else (entry,))}


def split_of(call, flat, mesh):
    """Returns the Factors of a call, and {factor: mesh axes} from the types of its tensors."""
    factors = Factors(call, flat)
    explicit = mesh.explicit_axes
    return factors, factors.axes_of(list(map(entries_of, flat[: len(call.dst)])), dict(mesh.shape)) if explicit else {}


def specs_of(factors, axes):
    """Returns the PartitionSpecs of the arguments and of the results."""
    return tuple(
        tuple(factors.spec_of(one, axes) for one in flatten_factors(of)) for of in (factors.arguments, factors.results)
    )


def place(call, flat):
    """Splits all tensors of a call alike, if their types say how. (`lower` splits the other arrays.)"""
    mesh, count = mesh_of(flat), len(call.dst)
    if not mesh.explicit_axes:
        return flat
    specs = specs_of(*split_of(call, flat, mesh))[0]
    return [*reshard(flat[:count], mesh, specs), *flat[count:]]


def like(d, of_type):
    """Splits a gradient as its argument is split, if the types say how."""
    if d is None or entries_of(d) == entries_of(of_type):
        return d
    return reshard([d], mesh_of([d]), [PartitionSpec(*entries_of(of_type))])[0]


def reshard(flat, mesh, specs):
    """Splits arrays as the PartitionSpecs say."""
    moves = tuple(None if entries_of(x) == tuple(spec) else spec for x, spec in zip(flat, specs))
    return flat if moves == (None,) * len(moves) else _moving(mesh, moves)(*flat)


@functools.lru_cache(maxsize=1024)
def _moving(mesh, moves):
    """Outside jax.set_mesh, compiled code takes the devices from the arrays that are split already."""

    @jax.jit
    def move(*flat):
        return [x if spec is None else jax.sharding.reshard(x, NamedSharding(mesh, spec)) for x, spec in zip(flat, moves)]

    return move


def type_results(*types, call):
    """Returns the types of the results of a call."""
    mesh, first = mesh_of(types), types[0]
    factors, axes = split_of(call, types, mesh)
    shapes = check(call, types)
    return [
        first.update(shape=shape.shape, dtype=shape.dtype, weak_type=False, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs_of(factors, axes)[1])
    ]
