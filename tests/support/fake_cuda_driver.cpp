// SPDX-License-Identifier: Apache-2.0
// A CUDA driver, libcuda.so.1, as broken as a test needs it. By the
// environment:
//   FAKE_CUDA_DEVICES   number of devices; 0 if it is not set
//   FAKE_CUDA_VERSION   CUDA version of the driver, as 13000 for 13.0. If it is
//                       set, CUDA's runtime accepts the driver; else the driver
//                       has only the functions below.
// What the runtime needs to start succeeds, and every other function of the
// driver fails.

#include <cstdlib>
#include <cstring>

namespace {

int connections = 0;

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

int fail() {
  constexpr int kUnknownError = 999;
  return kUnknownError;
}

int succeed() {
  return 0;
}

int get_version(int* version) {
  *version = number_in("FAKE_CUDA_VERSION");
  return 0;
}

} // namespace

extern "C" {

int cuInit(unsigned int /*flags*/) {
  connections = number_in("CUDA_DEVICE_MAX_CONNECTIONS");
  constexpr int kNoDevice = 100;
  return number_in("FAKE_CUDA_DEVICES") > 0 ? 0 : kNoDevice;
}

int cuDeviceGetCount(int* count) {
  *count = number_in("FAKE_CUDA_DEVICES");
  return 0;
}

/// What CUDA_DEVICE_MAX_CONNECTIONS was in cuInit(); 0: not set.
int connections_at_start() {
  return connections;
}

int cuDriverGetVersion(int* version) {
  return get_version(version);
}

/// The functions that CUDA's runtime takes from here.
int cuGetProcAddress_v2(
    const char* name,
    void** function,
    int /*version*/,
    unsigned long long /*flags*/,
    int* found) {
  constexpr int kNotFound = 500;
  *function = nullptr;
  if (found != nullptr) {
    *found = 1; // no such symbol
  }
  if (number_in("FAKE_CUDA_VERSION") == 0) {
    return kNotFound;
  }
  const auto is = [&](const char* other) {
    return std::strcmp(name, other) == 0;
  };
  // Functions of CUDA 12.0, which older drivers lack.
  if (is("cuStreamWriteValue32") && number_in("FAKE_CUDA_VERSION") < 12000) {
    return kNotFound;
  }
  *function =
      is("cuInit")               ? reinterpret_cast<void*>(&cuInit)
      : is("cuDeviceGetCount")   ? reinterpret_cast<void*>(&cuDeviceGetCount)
      : is("cuDriverGetVersion") ? reinterpret_cast<void*>(&get_version)
      : is("cuGetProcAddress")   ? reinterpret_cast<void*>(&cuGetProcAddress_v2)
      : is("cuGetExportTable")   ? reinterpret_cast<void*>(&fail)
      : is("cuDeviceGet")        ? reinterpret_cast<void*>(&succeed)
                                 : reinterpret_cast<void*>(&fail);
  if (found != nullptr) {
    *found = 0;
  }
  return 0;
}

} // extern "C"
