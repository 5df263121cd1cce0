// SPDX-License-Identifier: Apache-2.0
#pragma once
// What launchers other than torchrun tell a process about its job.

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace tessera {

/// The value of an environment variable, if it is set.
using EnvironmentLookup =
    std::function<std::optional<std::string>(const std::string& name)>;

/// torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT) for a process that Open MPI, MPICH's hydra,
/// Slurm's srun or another PMI launcher has started. Nothing when RANK or
/// WORLD_SIZE is set, or no launcher is known.
///
/// MASTER_ADDR and MASTER_PORT are left alone where they are set. Otherwise the
/// address is this host for a job on one node, and the first node of a Slurm
/// step; the port is 29500, or one made of the numbers of the Slurm job and its
/// step, so that jobs on one node do not meet.
/// @throws tessera::Error when a launcher has set some of its variables and not
///     others, or a value is malformed, or the address of rank 0 is unknown.
std::map<std::string, std::string> translated_job_environment(
    const EnvironmentLookup& lookup);

/// Sets them in this process. Not thread-safe, as setenv().
void adopt_job_environment();

/// The first host of a Slurm node list: "gpu[03-07,11],cpu2" begins with gpu03.
std::string first_slurm_host(const std::string& node_list);

/// Tasks on node `node` of "4(x2),3": 4, 4, 3.
/// @throws tessera::Error when there is no such node.
int slurm_tasks_on_node(const std::string& tasks_per_node, int node);

} // namespace tessera
