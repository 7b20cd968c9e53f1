#include "jit/driver.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

/* The functions of the driver (CUDA 12.0), which the runtime finds, so that the library does not depend on libcuda. */
typedef CUresult (*library_load_data)(CUlibrary *, const void *, CUjit_option *, void **, unsigned int, CUlibraryOption *,
                                      void **, unsigned int);
typedef CUresult (*library_get_kernel)(CUkernel *, CUlibrary, const char *);
typedef CUresult (*library_unload)(CUlibrary);
typedef CUresult (*kernel_get_attribute)(int *, CUfunction_attribute, CUkernel, CUdevice);
typedef CUresult (*get_error_name)(CUresult, const char **);

/* Stores the address of a function of the driver. Returns whether it exists. */
static int find_function(const char *name, void *to)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller's calls must not see this error */
        return 0;
    }
    memcpy(to, &address, sizeof address);
    return result == cudaDriverEntryPointSuccess && address;
}

static int32_t architecture(int device)
{
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return 10 * major + minor;
}

static const void *refuse(const char *what, CUresult error, char *why, size_t why_size)
{
    get_error_name name_of;
    const char *name = NULL;
    if (!find_function("cuGetErrorName", &name_of) || name_of(error, &name) != CUDA_SUCCESS || !name)
        name = "unknown error";
    snprintf(why, why_size, "the driver refuses the kernel (%s: %s)", what, name);
    return NULL;
}

/* The driver may load the code only when it is first used on a device. The last query makes it do so now. */
static const void *load(int device, const void *cubin, size_t bytes, const char *entry, char *why, size_t why_size)
{
    library_load_data load_data;
    library_get_kernel get_kernel;
    library_unload unload;
    kernel_get_attribute get_attribute;
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    int version = 0;
    (void)bytes; /* the size is in the cubin */
    if (!find_function("cuLibraryLoadData", &load_data) || !find_function("cuLibraryGetKernel", &get_kernel) ||
        !find_function("cuLibraryUnload", &unload) || !find_function("cuKernelGetAttribute", &get_attribute)) {
        snprintf(why, why_size, "the driver is older than CUDA 12.0");
        return NULL;
    }
    CUresult error = load_data(&library, cubin, NULL, NULL, 0, NULL, NULL, 0);
    if (error != CUDA_SUCCESS)
        return refuse("cuLibraryLoadData", error, why, why_size);
    error = get_kernel(&kernel, library, entry);
    if (error == CUDA_SUCCESS)
        error = get_attribute(&version, CU_FUNC_ATTRIBUTE_BINARY_VERSION, kernel, device);
    if (error == CUDA_SUCCESS)
        return kernel;
    (void)unload(library); /* a failure would only waste memory */
    return refuse(kernel ? "cuKernelGetAttribute" : "cuLibraryGetKernel", error, why, why_size);
}

const trope_jit_driver trope_cuda_driver = {architecture, load};
