// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_devices.h"

#include "tessera/runtime/core/cuda_backend.h"

#include <sys/wait.h>
#include <unistd.h>

namespace tessera::tests {

namespace {

int count_in_child() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(runtime::load_cuda_backend().device_count);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

} // namespace

int count_cuda_devices() {
  // The child loads LibTorch's CUDA libraries, which takes seconds.
  static const int devices = count_in_child();
  return devices;
}

c10::Device cuda_device() {
  return {runtime::load_cuda_backend().device_type, 0};
}

int64_t gpu_size(int64_t on_cuda, int64_t on_vdev) {
  return cuda_device().is_cuda() ? on_cuda : on_vdev;
}

} // namespace tessera::tests
