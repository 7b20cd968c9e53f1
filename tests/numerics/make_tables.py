#!/usr/bin/env python3
"""Writes tables.h, the expected numbers of numerics_rules, computed from the formulas of the papers with 50 digits.

    make_tables.py tables.h    writes the file, as the build does

RoPE: arXiv:2104.09864; position interpolation: 2306.15595; NTK: section 3.1 of 2309.00071; YaRN: sections 3.2 to 3.4 of the
same paper; LongRoPE: 2402.13753; Llama 3: the configuration of Llama 3.1; proportional: Gemma. The script needs only the
standard library.
"""
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal as D, getcontext

getcontext().prec = 50


def arctan_inverse(x, one):
    """Returns arctan(1 / x) in units of 1 / one, an integer."""
    total, power, n = 0, one // x, 0
    while power:
        total += (-power if n % 2 else power) // (2 * n + 1)
        power //= x * x
        n += 1
    return total


def pi_times(one):
    """Returns pi * one, an integer, by Machin's formula."""
    one <<= 64
    return (16 * arctan_inverse(5, one) - 4 * arctan_inverse(239, one)) >> 64


PI = D(pi_times(10**60)) / D(10**60)


def power(base, exponent):
    return (D(base).ln() * exponent).exp()


def theta(c, i, base=None):
    return power(base or c["base"], D(-2 * i) / c["rotary_dim"])


def default(c, i):
    return theta(c, i)


def linear(c, i):
    return theta(c, i) / D(c["factor"])


def dynamic(c, i):
    d, s, m = D(c["rotary_dim"]), D(c.get("seq_len", 0)), D(c["original_max_position"])
    stretch = 1 + D(c["factor"]) * (max(s, m) - m) / m
    return theta(c, i, base=D(c["base"]) * power(stretch, d / (d - 2)))


def yarn(c, i):
    d, m, base = c["rotary_dim"], D(c["original_max_position"]), D(c["base"])

    def dimension(turns):  # returns the i with original_max_position * theta_i = 2 pi turns
        return (m / (2 * PI * D(turns))).ln() / base.ln() * d / 2

    first, last = dimension(c.get("beta_fast", 32)), dimension(c.get("beta_slow", 1))
    if not c.get("no_truncate"):
        first, last = first.to_integral_value(ROUND_FLOOR), last.to_integral_value(ROUND_CEILING)
    first, last = max(first, D(0)), min(last, D(d - 1))
    ramp = max(D(0), min(D(1), (i - first) / (last - first)))
    return theta(c, i) * (ramp / D(c["factor"]) + 1 - ramp)


def longrope(c, i):
    long = c.get("seq_len", 0) > c["original_max_position"]
    return theta(c, i) / D(c["long_factor" if long else "short_factor"][i])


def llama3(c, i):
    m, low, high = D(c["original_max_position"]), D(c["low_freq_factor"]), D(c["high_freq_factor"])
    f, factor = theta(c, i), D(c["factor"])
    wavelength = 2 * PI / f
    if wavelength > m / low:
        return f / factor
    if wavelength < m / high:
        return f
    smooth = (m / wavelength - low) / (high - low)
    return (1 - smooth) * f / factor + smooth * f


def proportional(c, i):
    turning = int(D(c["partial_rotary_factor"]) * c["rotary_dim"] / 2)
    return theta(c, i) / D(c.get("factor", 1)) if i < turning else D(0)


def attention_factor(c):
    if "attention_factor" in c:
        return D(c["attention_factor"])
    if c["rule"] is yarn:
        def m(scale):
            return D("0.1") * D(scale) * max(D(c["factor"]), D(1)).ln() + 1
        return m(c["mscale"]) / m(c["mscale_all_dim"]) if "mscale" in c else m(1)
    if c["rule"] is longrope and c.get("factor", 1) > 1:
        return (1 + D(c["factor"]).ln() / D(c["original_max_position"]).ln()).sqrt()
    return D(1)


SHORT = [1 + i / 64 for i in range(48)]  # like the arrays of Phi-3
LONG = [1 + i * i / 32 for i in range(48)]
PHI = dict(rule=longrope, rotary_dim=96, base=10000, factor=32, original_max_position=4096, short_factor=SHORT,
           long_factor=LONG)

CASES = {
    "RoFormer": dict(rule=default, rotary_dim=64, base=10000),
    "Llama 3, unscaled": dict(rule=default, rotary_dim=128, base=500000),
    "two dimensions": dict(rule=default, rotary_dim=2, base=100),
    "position interpolation": dict(rule=linear, rotary_dim=128, base=10000, factor=2.5),
    "dynamic NTK, short sequence": dict(rule=dynamic, rotary_dim=64, base=10000, factor=4, original_max_position=2048,
                                        seq_len=100),
    "dynamic NTK, long sequence": dict(rule=dynamic, rotary_dim=128, base=10000, factor=4, original_max_position=2048,
                                       seq_len=6144),
    "Qwen2.5, YaRN": dict(rule=yarn, rotary_dim=128, base=1000000, factor=4, original_max_position=32768),
    "DeepSeek-V3": dict(rule=yarn, rotary_dim=64, base=10000, factor=40, original_max_position=4096, beta_fast=32,
                        beta_slow=1, mscale=1, mscale_all_dim=1),
    "YaRN, factor below 1": dict(rule=yarn, rotary_dim=64, base=10000, factor=0.5, original_max_position=4096),
    "DeepSeek, unequal mscale": dict(rule=yarn, rotary_dim=64, base=10000, factor=40, original_max_position=4096,
                                     mscale=1, mscale_all_dim=0.707),
    "gpt-oss": dict(rule=yarn, rotary_dim=64, base=150000, factor=32, original_max_position=4096, no_truncate=1),
    "YaRN, given attention factor": dict(rule=yarn, rotary_dim=64, base=10000, factor=8, original_max_position=2048,
                                         beta_fast=16, beta_slow=2, attention_factor=1.25),
    "Phi-3, short": dict(PHI, seq_len=4096),
    "Phi-3, long": dict(PHI, seq_len=4097),
    "Phi-3, given attention factor": dict(PHI, attention_factor=1.5),
    "LongRoPE, factor 1": dict(PHI, factor=1),
    "LongRoPE, factor below 1": dict(PHI, factor=0.5),
    "Llama 3.1": dict(rule=llama3, rotary_dim=128, base=500000, factor=8, low_freq_factor=1, high_freq_factor=4,
                      original_max_position=8192),
    "Llama 3.2": dict(rule=llama3, rotary_dim=64, base=500000, factor=32, low_freq_factor=1, high_freq_factor=4,
                      original_max_position=8192),
    "Gemma, 1/4 rotates": dict(rule=proportional, rotary_dim=128, base=1000000, partial_rotary_factor=0.25),
    "proportional, odd pair count": dict(rule=proportional, rotary_dim=70, base=10000, partial_rotary_factor=0.3, factor=8),
}


def lines_of(values, per_line):
    return ["    " + " ".join(v + "," for v in values[i:i + per_line]) for i in range(0, len(values), per_line)]


def doubles(values):
    return lines_of([repr(float(v)) for v in values], 5)


def tables():
    out = ["/* Made by make_tables.py. */", "#ifndef TESTS_NUMERICS_TABLES_H",
           "#define TESTS_NUMERICS_TABLES_H", "", '#include "trope/trope.h"', ""]
    out += ["static const double table_short_factor[] = {", *doubles(SHORT), "};"]
    out += ["static const double table_long_factor[] = {", *doubles(LONG), "};", ""]
    for n, c in enumerate(CASES.values()):
        values = [c["rule"](c, i) for i in range(c["rotary_dim"] // 2)]
        out += [f"static const double table_inv_freq_{n}[] = {{", *doubles(values), "};"]
    out += ["", "static const struct {", "    const char *name;", "    trope_frequency_args args;", "    double attention_factor;",
            "    const double *inv_freq;", "} table_rules[] = {"]
    for n, (name, c) in enumerate(CASES.items()):
        fields = [".struct_size = sizeof(trope_frequency_args)", f".rule = TROPE_RULE_{c['rule'].__name__.upper()}"]
        for key, value in c.items():
            if key != "rule":
                fields.append(f".{key} = " + (f"table_{key}" if isinstance(value, list) else str(value)))
        out += [f'    {{"{name}", {{', *lines_of(fields, 4), f"    }}, {float(attention_factor(c))!r}, table_inv_freq_{n}}},"]
    out += ["};", "", "#endif", ""]
    return "\n".join(out)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(tables())
