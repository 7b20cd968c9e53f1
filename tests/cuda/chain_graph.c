#include "cuda/chain.h"
#include "cuda/device_call.h"

void chain_launch(const chain *c, chain_place at, int times)
{
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CUDA_MUST(cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeGlobal));
    c->run(c->what, at);
    CUDA_MUST(cudaStreamEndCapture(at.stream, &graph));
    CUDA_MUST(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < times; i++)
        CUDA_MUST(cudaGraphLaunch(replay, at.stream));
    CUDA_MUST(cudaStreamSynchronize(at.stream));
    CUDA_MUST(cudaGraphExecDestroy(replay));
    CUDA_MUST(cudaGraphDestroy(graph));
}
