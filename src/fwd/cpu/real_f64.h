/* What templates are made with for operands of f64. Included before them, each time. */
#undef REAL
#undef REAL_DTYPE
#undef REAL_SQRT
#undef REAL_FMA
#undef SUFFIX
#define REAL       double
#define REAL_DTYPE TROPE_F64
#define REAL_SQRT  sqrt
#define REAL_FMA   trope_fma_double
#define REAL_IS_DOUBLE
#define SUFFIX f64
