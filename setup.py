"""The part of the build that pyproject.toml cannot express: the optional C kernels (plain C, loaded by ctypes)."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "anydraft.kernels._linear",
            sources=[f"anydraft/kernels/{name}.c" for name in ("linear", "decoder", "decoder_avx2")],
            depends=[
                f"anydraft/kernels/{name}.h"
                for name in ("linear", "avx2", "avx512", "portable", "threads", "decoder", "decoder_layer")
            ],
            # No contraction: a product and a sum must round alike in every tile.
            extra_compile_args=[
                "-O3",
                "-std=gnu11",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-Wno-psabi",
            ],
            optional=True,  # without a compiler the package works on torch's own operators
        )
    ]
)
