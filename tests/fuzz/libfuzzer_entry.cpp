// SPDX-License-Identifier: Apache-2.0
// The one target of a program with libFuzzer.
#include "fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::fuzz_targets().begin()->second(
      {reinterpret_cast<const char*>(data), size});
  return 0;
}
