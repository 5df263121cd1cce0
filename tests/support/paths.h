// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the sources and the built programs are. In functions: a path on the
// compiler's command line would keep checkouts from sharing a compiler cache.

#include <string>

namespace tessera::tests {

/// The root of the checkout.
std::string source_dir();

/// The path of a built program, e.g. "tessera".
std::string program(const std::string& name);

/// libtessera_cuda.so, which a CUDA build has.
std::string cuda_plugin();
/// libtessera_shared_device.so, likewise.
std::string shared_device_plugin();

/// libcuda.so.1 and libnvidia-ml.so.1 as tests need them.
std::string fake_cuda_driver();
std::string fake_nvml();

/// The project's version, e.g. "0.1.0".
std::string version();

} // namespace tessera::tests
