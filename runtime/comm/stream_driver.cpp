// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/stream_driver.h"

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

namespace {

// One plugin per process; it registers before any driver is made.
StreamDriverMaker cuda_maker = nullptr;

} // namespace

void register_cuda_stream_driver(StreamDriverMaker maker) {
  cuda_maker = maker;
}

std::unique_ptr<StreamDriver> make_cuda_stream_driver(int device_index) {
  TESSERA_CHECK(
      cuda_maker != nullptr,
      "ranks that share a CUDA device need the CUDA backend, which is not loaded");
  return cuda_maker(device_index);
}

} // namespace tessera::runtime
