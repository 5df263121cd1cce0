// SPDX-License-Identifier: Apache-2.0
#pragma once
// `complete_launch_variables()` takes what the command line of a launcher
// leaves out from the environment.

#include "tessera/runtime/launch/job_environment.h"

#include <optional>
#include <string>

namespace tessera::runtime {

/// What a user has said about the nodes of a job and this one's place.
struct LaunchVariables {
  std::optional<int> nnodes;
  std::optional<int> node_rank;
  std::optional<int> nproc;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
};

/// Fills in, in this order, torchrun's variables (PET_NNODES, PET_NODE_RANK,
/// PET_NPROC_PER_NODE, PET_MASTER_ADDR, PET_MASTER_PORT; MASTER_ADDR and
/// MASTER_PORT if there are several nodes); those of a Slurm job step with one
/// task per node; JOB_COMPLETION_INDEX of an indexed Kubernetes Job for the
/// number of the node. Without any, there is one node; the port is 29500, or in
/// a Slurm step, one that follows from the numbers of job and step.
/// @throws Error when a value is malformed, or the number or address of a node
///   is missing.
LaunchVariables complete_launch_variables(
    LaunchVariables given,
    const EnvironmentLookup& lookup);

} // namespace tessera::runtime
