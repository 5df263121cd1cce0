// SPDX-License-Identifier: Apache-2.0
// The time to give host memory its pages, which is most of the time to pin it:
// populate_memory() on some threads, beside one thread that touches them.
//
//   bench_host_memory --benchmark_repetitions=3
//
// An iteration is a new mapping with huge pages, as HostMemory makes it.

#include "tessera/runtime/memory/host_heap.h"
#include "tessera/runtime/memory/populate_memory.h"

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <functional>

namespace tessera {

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

void time_mapping(
    benchmark::State& state,
    const std::function<void(void* data, size_t bytes)>& populate) {
  const auto bytes = static_cast<size_t>(state.range(0) * kGiB);
  for (auto _ : state) {
    void* data = ::mmap(
        nullptr,
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
    if (data == MAP_FAILED) {
      state.SkipWithError("no memory");
      return;
    }
    runtime::prefer_huge_pages(data, bytes);
    populate(data, bytes);
    state.PauseTiming();
    ::munmap(data, bytes);
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

void BM_Populate(benchmark::State& state) {
  runtime::ThreadPool pool{
      runtime::CpuPlacement(static_cast<int>(state.range(1)))};
  time_mapping(state, [&](void* data, size_t bytes) {
    runtime::populate_memory(data, bytes, pool);
  });
}

void BM_Touch(benchmark::State& state) {
  time_mapping(state, &runtime::detail::touch_pages);
}

BENCHMARK(BM_Touch)->Arg(4)->ArgName("gib")->UseRealTime();
BENCHMARK(BM_Populate)
    ->ArgsProduct({{4}, {1, 2}})
    ->ArgNames({"gib", "threads"})
    ->UseRealTime();

} // namespace

} // namespace tessera

BENCHMARK_MAIN();
