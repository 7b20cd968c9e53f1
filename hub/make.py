#!/usr/bin/env python3
"""Makes a folder that the package kernels loads, with one build variant of the kernel trope:

    hub/make.py LIBRARY dist/hub                            the variant for a PyTorch without CUDA
    hub/make.py LIBRARY dist/hub --cuda 13.0 --archs 9.0    the variant for a PyTorch with CUDA 13, beside it
    hub/make.py build/libtrope.so dist/hub --local          also with a library that only this machine can load

The results are dist/hub/README.md, the page on the Hub, and dist/hub/build/VARIANT, with metadata.json, __init__.py,
layers.py, a copy of the Python package, and the library. They need nothing else of this repository, and can be moved.
kernels.get_local_kernel("dist/hub") loads the variant that fits PyTorch. The variant for CUDA runs on the CPU, too.

This script needs Python 3.11 or later.
"""

import argparse
import base64
import ctypes
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import sys
import tomllib

HUB = pathlib.Path(__file__).resolve().parent
ROOT = HUB.parent
# The parts of python/trope that trope.torch does not import. Most of them are for other libraries.
LEFT_OUT = """
    __main__.py _apply _dropin.py _fused_norms.py _recipes.py apex.py flash_attn jax liger.py megatron transformer_engine.py
    transformers.py py.typed *.so __pycache__
"""
# The library uses no symbol of PyTorch, so it fits every version that trope.torch supports, which is 2.4 or later.
FRAMEWORK = "torch-stable-abi24"
NEWEST_GLIBC = (2, 28)  # the newest glibc that a kernel on the Hub may need (manylinux_2_28)


def fail(text):
    sys.exit("hub/make.py: " + text)


def backends_of(library):
    """Returns the backends that a library was built for."""
    try:
        info = ctypes.CDLL(os.path.abspath(library)).trope_info
    except (OSError, AttributeError) as error:
        fail("%s is no library of trope: %s" % (library, error))
    info.restype = ctypes.c_char_p
    return dict(line.split(": ", 1) for line in info().decode().splitlines())["backends"].split()


def check_glibc(library):
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)", pathlib.Path(library).read_bytes())
    needed = max((int(major), int(minor)) for major, minor in found)
    if needed > NEWEST_GLIBC:
        fail(
            "%s needs glibc %d.%d, and the Hub allows at most %d.%d. The wheels of tools/release have a trope/libtrope.so for"
            " the Hub. For a folder that stays on this machine, add --local." % (library, *needed, *NEWEST_GLIBC)
        )


def hash_of(path):
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


def make(library, folder, cuda=None, archs=(), is_local=False):
    """Makes one variant and the page, and returns the folder of the variant."""
    general = tomllib.loads((HUB / "build.toml").read_text())["general"]
    backend = {"type": "cpu"} if cuda is None else {"type": "cuda", "archs": list(archs)}
    if backend["type"] not in backends_of(library):
        fail("%s has no backend %s: build it with -DTROPE_CUDA=ON" % (library, backend["type"]))
    if not is_local:
        check_glibc(library)
    # The library contains the CUDA runtime, and every driver of a major version runs it. So the minor version is 0.
    suffix = "cpu" if cuda is None else "cu%s0" % cuda.partition(".")[0]
    variant = pathlib.Path(folder, "build", "%s-%s-%s-linux" % (FRAMEWORK, suffix, platform.machine()))
    if variant.exists():
        shutil.rmtree(variant)
    shutil.copytree(HUB / "torch-ext" / general["name"], variant, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "python" / "trope", variant / "_trope", ignore=shutil.ignore_patterns(*LEFT_OUT.split()))
    shutil.copyfile(library, variant / "_trope" / "libtrope.so")
    shutil.copyfile(ROOT / "LICENSE", variant / "LICENSE")
    shutil.copyfile(ROOT / "third_party" / "xla" / "LICENSE", variant / "LICENSE.xla")
    shutil.copyfile(HUB / "CARD.md", pathlib.Path(folder, "README.md"))

    files = {str(path.relative_to(variant)): hash_of(path) for path in sorted(variant.rglob("*")) if path.is_file()}
    # kernels imports the kernel under its id, which is also the namespace of its operators in torch.ops.
    unique = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:10]
    metadata = {
        "id": "_%s_%s_%s" % (general["name"], backend["type"], unique),
        "name": general["name"],
        "version": general["version"],
        "license": general["license"],
        "python-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": files},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return variant


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="a libtrope.so")
    parser.add_argument("folder", help="the folder to make, or to add a variant to")
    parser.add_argument("--cuda", help="makes the variant for CUDA: the version of the toolkit that built the library")
    parser.add_argument("--archs", help="the compute capabilities in the library, such as 8.0,9.0+PTX")
    parser.add_argument("--local", action="store_true", help="also takes a library that needs a newer glibc than the Hub's")
    given = parser.parse_args()
    if (given.cuda is None) != (given.archs is None):
        parser.error("--cuda and --archs belong together: %s is missing" % ("--cuda" if given.cuda is None else "--archs"))
    if given.cuda is not None and not re.fullmatch(r"\d+\.\d+", given.cuda):
        parser.error("--cuda must be a version such as 13.0, not %r" % given.cuda)
    archs = given.archs.split(",") if given.archs is not None else []
    for arch in archs:
        if not re.fullmatch(r"\d+\.\d+[af]?(\+PTX)?", arch):
            parser.error("--archs must be capabilities such as 9.0 or 9.0+PTX, separated by commas, not %r" % given.archs)
    print(make(given.library, given.folder, given.cuda, archs, given.local))


if __name__ == "__main__":
    main()
