"""Groups the tensors of a file by their names. A group is a call."""

from .refused import refuse, refuse_file, refuse_tensor, shorten

ROTATED = ("q", "k", "x")
OPERANDS = ROTATED + ("v",)
ROLES = OPERANDS + (
    "freqs", "cos", "sin", "freqs_cis", "cos_sin_cache", "inv_freq", "cu_seqlens", "cu_seqlens_padded", "start_positions",
    "position_ids", "copy",
)  # fmt: skip
# Names in frameworks and models.
_OTHER_NAMES = {
    "query": "q", "query_states": "q", "q_pe": "q", "q_proj": "q", "key": "k", "key_states": "k", "k_pe": "k", "k_proj": "k",
    "value": "v", "value_states": "v", "v_proj": "v", "rotary_pos_emb": "freqs", "cos_cached": "cos", "sin_cached": "sin",
    "rope_cache": "freqs_cis",
}  # fmt: skip
# Tensors that have nothing to do with a rotation and are copied.
_COPIED = ("attention_mask", "causal_mask", "attn_output", "hidden_states", "input_ids", "labels", "token_type_ids")
_KNOWN = {**{role: role for role in ROLES if role != "copy"}, **_OTHER_NAMES, **dict.fromkeys(_COPIED, "copy")}
# Modules with these names hold the angles of their parent module.
_ANGLE_MODULES = ("rotary_emb.", "rotary_pos_emb.")


class Group(dict):
    """The tensors of a call by their roles. `prefix` is the common start of the operands' names: "model.layers.3."."""

    def __init__(self, prefix):
        super().__init__()
        self.prefix = prefix

    def operands(self):
        return [(role, self[role]) for role in OPERANDS if role in self]

    def rotated(self):
        return [self[role] for role in ROTATED if role in self]

    def first(self):
        return self.operands()[0][1]


def find_groups(file, given):
    """Returns the groups of a file, and {name: (group, role)} of the operands.

    given: (role, name) pairs of --name. All tensors are loaded, except operands and tensors with the role copy.
    """
    roles = _find_roles(file, given)
    groups, operands, others = {}, {}, {}
    for tensor in file.tensors:
        role, prefix = roles[tensor.name], _prefix(tensor.name)
        if role in OPERANDS:
            group = groups.setdefault(prefix, Group(prefix))
            _add(file, group, role, tensor)
            operands[tensor.name] = group, role
        elif role != "copy":
            others.setdefault(_scope(prefix), []).append((role, tensor))
    if not groups:
        refuse_file(file.path, "must hold at least one of the tensors q, k, x, v")
    _share(file, groups.values(), others)
    return list(groups.values()), operands


def _find_roles(file, given):
    roles = {}
    for role, wanted in given:
        if role not in ROLES:
            refuse("--name: '%.64s' is not one of %s", role, ", ".join(ROLES))
        found = [tensor.name for tensor in file.tensors if tensor.name == wanted or tensor.name.endswith("." + wanted)]
        if not found:
            refuse("--name: no tensor of %s is called '%.64s'", file.path, wanted)
        for name in found:
            if roles.setdefault(name, role) != role:
                refuse("--name: '%.64s' has two roles, %s and %s", name, roles[name], role)
    for tensor in file.tensors:
        word = tensor.name.rpartition(".")[2]
        if tensor.name not in roles and word not in _KNOWN:
            text = (
                "unknown name: the last word must be one of %s; otherwise give its role with --name (--name copy=NAME "
                "copies it)"
            )
            refuse_tensor(file.path, tensor.name, text, ", ".join(ROLES[:-1]))
        roles.setdefault(tensor.name, _KNOWN.get(word))
    return roles


def _prefix(name):
    """Returns a name without its last word: "model.layers.3." for "model.layers.3.q"."""
    return name[: name.rfind(".") + 1]


def _scope(prefix):
    """Returns the scope of a tensor with this prefix: the start of the prefixes of all groups that it belongs to."""
    for module in _ANGLE_MODULES:
        if prefix == module or prefix.endswith("." + module):
            return prefix[: -len(module)]
    return prefix


def _scopes_around(prefix):
    """Returns all scopes that contain a prefix: "", "model.", "model.layers.", ..."""
    ends = [at + 1 for at, letter in enumerate(prefix) if letter == "."]
    return [""] + [prefix[:end] for end in ends]


def _add(file, group, role, tensor):
    if role in group:
        first = shorten((group.first() if group.operands() else tensor).name)
        refuse_tensor(file.path, tensor.name, "and '%s' may both belong to '%s'", shorten(group[role].name), first)
    group[role] = tensor


def _share(file, groups, others):
    """Gives each group the tensors of the scopes that contain it, and loads these tensors."""
    used = set()
    for group in groups:
        for scope in _scopes_around(group.prefix):
            for role, tensor in others.get(scope, ()):
                _add(file, group, role, tensor)
                used.add(tensor.name)
    for tensors in others.values():
        for _, tensor in tensors:
            if tensor.name not in used:
                refuse_tensor(
                    file.path, tensor.name, "belongs to no q, k, x or v: none has a name that begins with the same prefix"
                )
            file.load(tensor)
