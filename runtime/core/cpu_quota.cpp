// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace tessera::runtime {

int cpu_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) {
    return std::max(
        1,
        static_cast<int>(
            std::ceil(std::strtod(quota.c_str(), nullptr) / period)));
  }
  return 1 << 20;
}

int usable_cpus() {
  cpu_set_t set;
  const int cpus = ::sched_getaffinity(0, sizeof(set), &set) == 0
                       ? CPU_COUNT(&set)
                       : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(cpus, cpu_quota()));
}

} // namespace tessera::runtime
