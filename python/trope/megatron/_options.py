"""Options of trope.torch.rotate and checks that the other files share."""

from .._dropin import integer
from .._errors import Error

_T = {"tensors[0]": "t"}
_CP = {"cp_size": integer(1), "cp_rank": integer(0)}


def _sequences(cu_seqlens, cp_size, cp_rank):
    """Returns the options of thd."""
    return dict(layout="thd", cu_seqlens=cu_seqlens, padding="zero", cp_size=cp_size, cp_rank=cp_rank, cp_layout="zigzag")


def _pairing(rotary_interleaved, mla_rotary_interleaved=False, mla_output_remove_interleaving=False):
    """Returns the options of pairings. MLA pairs neighbours and writes halves, unless this reordering is to be removed."""
    if not mla_rotary_interleaved:
        pairing = "interleaved" if rotary_interleaved else "half"
        return dict(pairing=pairing, angle_columns=pairing)
    if rotary_interleaved:
        message = "mla_rotary_interleaved and rotary_interleaved are both True, which Megatron-Core's configs refuse"
        raise Error(message, "mla_rotary_interleaved")
    out = "interleaved" if mla_output_remove_interleaving else "half"
    return dict(pairing="interleaved", pairing_out=out, angle_columns="half")


def _check_columns(t, columns, argument):
    if not 2 <= columns <= t.shape[-1] or columns % 2:
        words = argument, columns, t.shape[-1]
        raise Error("%s is for %d elements of a head, which must be even, and 2 to %d" % words, argument)


def _check_rows(t, rows, argument):
    """Checks the rows of sbhd, where row i belongs to token i. There may be more rows, as for Megatron's fused RoPE."""
    if rows < t.shape[0]:
        raise Error("%s has %d rows for %d tokens" % (argument, rows, t.shape[0]), argument)
