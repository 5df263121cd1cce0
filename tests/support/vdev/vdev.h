// SPDX-License-Identifier: Apache-2.0
#pragma once
// A virtual asynchronous device, LibTorch's PrivateUse1, for tests of the order
// of work where there is no GPU: `install()` registers it with LibTorch and
// with Tessera, and run_ranks_on_vdev() runs ranks that use it.
//
// What it finds: work on a stream that does not wait for what it needs, memory
// that is reused too early, host memory that is read before a copy has ended,
// threads with the wrong current device or stream, waits of the host, and
// collectives that only work when all ranks are connected already. What it does
// not: anything about CUDA kernels, their arithmetic, and speed.

#include "support/ranks.h"
#include "support/vdev/vdev_runtime.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tessera::tests::vdev {

/// Registers everything, once per process.
void install();

/// The orders of execution of a suite: `few`, or with TESSERA_SOAK set eager,
/// lazy, 20 random ones, and each of the streams that engines use held back.
std::vector<Policy> policies(std::vector<Policy> few);

/// As run_ranks(), with the virtual device. A race or another violation that
/// the device has noted fails the test.
void run_ranks_on_vdev(
    int world_size,
    const Policy& policy,
    const std::function<void(World&)>& body,
    const RankOptions& options = {});

/// Grows a storage of device memory; keeps what is in it.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

/// The accesses of a command that uses the elements of `tensor`.
void add_accesses(
    std::vector<Access>& accesses,
    const at::Tensor& tensor,
    bool is_write);

/// A CPU tensor over the memory of a device tensor, which it does not keep.
at::Tensor on_host(const at::Tensor& tensor);

/// The current stream of the tensor's device.
c10::Stream stream_of(const at::Tensor& tensor);

/// @param is_lane whether it is from the pool of high priority, as lanes of
///   all-gathers and reductions are, or from the other one.
c10::Stream new_stream(c10::Device device, bool is_lane = false);
/// Whether the stream is from the pool of high priority.
bool has_high_priority(c10::StreamId stream);

/// Writes to memory that the current stream has freed: several blocks of each
/// of these numbers of float32 elements.
void use_free_memory(c10::Device device, at::IntArrayRef sizes);

/// Parts of install().
void install_guard();
void install_hooks();
void install_operators();
void install_kernels();
void install_process_group();

} // namespace tessera::tests::vdev
