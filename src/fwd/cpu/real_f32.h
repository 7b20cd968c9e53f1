/* The parameters of templates for operands of f32, f16 and bf16. Include this file before each use of the templates. */
#undef REAL
#undef REAL_DTYPE
#undef REAL_RECIPROCAL_ROOT
#undef REAL_NORM_SLOPE
#undef REAL_FMA
#undef REAL_IS_DOUBLE
#undef SUFFIX
#define REAL                 float
#define REAL_DTYPE           TROPE_F32
#define REAL_RECIPROCAL_ROOT trope_reciprocal_root
#define REAL_NORM_SLOPE      trope_norm_slope
#define REAL_FMA             trope_fma
#define SUFFIX               f32
