// SPDX-License-Identifier: Apache-2.0
#pragma once
// `cpu_quota()` reads how many CPUs the control group of this process may use,
// as set by `docker run --cpus` or Kubernetes; `usable_cpus()` how many the
// process may use altogether.

namespace tessera::runtime {

/// The quota of the control group (version 2) in whole CPUs, rounded up, at
/// least 1; a large number if there is none.
int cpu_quota();

/// What taskset and the control group leave of the machine's CPUs, at least 1.
int usable_cpus();

} // namespace tessera::runtime
