// SPDX-License-Identifier: Apache-2.0
#pragma once
// `populate_memory()` gives mapped host memory its pages ahead of its first
// use.

#include "tessera/runtime/threads/thread_pool.h"

#include <cstddef>

namespace tessera::runtime {

/// More threads than this wait for each other in the kernel.
inline constexpr int kMostPopulatingThreads = 16;

/// Makes every page of [data, data + bytes) resident, with the contents that it
/// has, on at most kMostPopulatingThreads threads of `pool`; blocks. The driver
/// would do that with one thread when it pins the memory
/// (benchmarks/bench_host_memory.cpp). If the system refuses, the pages come
/// with their first use.
void populate_memory(void* data, size_t bytes, ThreadPool& pool);

namespace detail {

/// What populate_memory() does where the system has no call for it (Linux
/// before 5.14): writes a byte of each page to itself.
void touch_pages(void* data, size_t bytes);

} // namespace detail

} // namespace tessera::runtime
