/* A CUDA graph that captures a call has one kernel, or several with a gradient of the angles. A replay works like a new
 * call: with new elements, cu_seqlens, ids and start positions at the same addresses, its results equal the CPU's.
 *
 *     cuda_graph [--seed S] [--count N]        replays each graph N times */
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"
#include "support/seeds.h"

#define MAX_NODES 32

static cudaGraph_t capture(problem *p, cudaStream_t stream)
{
    cudaGraph_t graph;
    CUDA_MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK_MESSAGE(problem_queue(p, stream) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaStreamEndCapture(stream, &graph));
    return graph;
}

/* Returns the number of kernels. Checks that the graph has only kernels and memset nodes: no allocation, no host
 * function. */
static int count_kernels(cudaGraph_t graph)
{
    cudaGraphNode_t nodes[MAX_NODES];
    size_t count = MAX_NODES;
    int kernels = 0;
    CUDA_MUST(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type;
        CUDA_MUST(cudaGraphNodeGetType(nodes[i], &type));
        CHECK_MESSAGE(type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset,
                      "unexpected graph node of type %d", (int)type);
        kernels += type == cudaGraphNodeTypeKernel;
    }
    return kernels;
}

static void check_graph(int kind, int operands, seed_range seeds)
{
    cudaStream_t stream;
    cudaGraphExec_t replay;
    CUDA_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    problem *p = problem_of_kind(kind, operands, seeds.first);
    cudaGraph_t graph = capture(p, stream);
    const int kernels = count_kernels(graph);
    if (p->k.gradient)
        printf("kind %d with %d operands: %d kernels\n", kind, operands, kernels);
    else
        CHECK_MESSAGE(kernels == 1, "kind %d with %d operands: %d kernels", kind, operands, kernels);
    CUDA_MUST(cudaGraphInstantiate(&replay, graph, 0));
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        problem_draw(p, seed, stream);
        CUDA_MUST(cudaGraphLaunch(replay, stream));
        CHECK_MESSAGE(problem_holds(p, stream), "replay of kind %d with %d operands, seed %llu: differs from the CPU", kind,
                      operands, (unsigned long long)seed);
        problem_draw(p, seed, stream);
        CHECK_MESSAGE(problem_queue(p, stream) == TROPE_OK, "%s", trope_last_error());
        CHECK_MESSAGE(problem_holds(p, stream), "new call of kind %d with %d operands, seed %llu: differs from the CPU",
                      kind, operands, (unsigned long long)seed);
    }
    CUDA_MUST(cudaGraphExecDestroy(replay));
    CUDA_MUST(cudaGraphDestroy(graph));
    CUDA_MUST(cudaStreamDestroy(stream));
    problem_free(p);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 8);
    device_require();
    for (int operands = 1; operands <= CASE_OPERANDS; operands++)
        for (int kind = 0; kind < PROBLEM_KINDS; kind++)
            check_graph(kind, operands, seeds);
    return check_result();
}
