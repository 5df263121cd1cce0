// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so.1 with one device, which the test fills.

namespace {

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

unsigned own_pid = 0;
unsigned long long local_bytes = 0;
unsigned long long all_bytes = 0;

} // namespace

extern "C" {

/// @param pid under which the device lists the process.
void fake_nvml_set(
    unsigned pid,
    unsigned long long own,
    unsigned long long all) {
  own_pid = pid;
  local_bytes = own;
  all_bytes = all;
}

int nvmlInit_v2() {
  return 0;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  constexpr int kNotFound = 6;
  *device = &own_pid;
  return uuid == nullptr ? kNotFound : 0;
}

int nvmlDeviceGetMemoryInfo(void* /*device*/, Memory* memory) {
  *memory = {1ULL << 40, (1ULL << 40) - all_bytes, all_bytes};
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(
    void* /*device*/,
    unsigned* count,
    Process* processes) {
  constexpr int kTooSmall = 7;
  constexpr unsigned kProcesses = 2;
  const unsigned room = *count;
  *count = kProcesses;
  if (room < kProcesses || processes == nullptr) {
    return kTooSmall;
  }
  processes[0] = {own_pid + 1, 5ULL << 30, 0, 0};
  processes[1] = {own_pid, local_bytes, 0, 0};
  return 0;
}

} // extern "C"
