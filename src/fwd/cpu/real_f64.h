/* The parameters of templates for operands of f64. Include this file before each use of the templates. */
#undef REAL
#undef REAL_DTYPE
#undef REAL_RECIPROCAL_ROOT
#undef REAL_NORM_SLOPE
#undef REAL_FMA
#undef SUFFIX
#define REAL                 double
#define REAL_DTYPE           TROPE_F64
#define REAL_RECIPROCAL_ROOT trope_reciprocal_root_f64
#define REAL_NORM_SLOPE      trope_norm_slope_f64
#define REAL_FMA             trope_fma_double
#define REAL_IS_DOUBLE
#define SUFFIX f64
