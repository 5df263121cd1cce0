// SPDX-License-Identifier: Apache-2.0
#pragma once
// `adopt_job_environment()` translates the environment of launchers other than
// torchrun (Open MPI, MPICH, Slurm, PMI) to torchrun's variables.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace tessera::runtime {

/// Returns the value of an environment variable, if it is set.
using EnvironmentLookup =
    std::function<std::optional<std::string>(const std::string& name)>;

/// Returns torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) for a process started by Open
/// MPI, MPICH's hydra, Slurm's srun or another PMI launcher. Empty if RANK or
/// WORLD_SIZE is set, or no launcher is recognized.
///
/// MASTER_ADDR and MASTER_PORT are kept if they are set. Otherwise the address
/// is this host for a job on one node, or the first node of a Slurm step; the
/// port is 29500, or derived from the numbers of the Slurm job and step, so
/// that jobs on one node do not collide.
/// @throws tessera::Error when a launcher has set only some of its variables, a
///   value is malformed, or the address of rank 0 is unknown.
std::map<std::string, std::string> translated_job_environment(
    const EnvironmentLookup& lookup);

/// Sets these variables in this process. Not thread-safe, like setenv().
void adopt_job_environment();

/// First host of a Slurm node list: gpu03 for "gpu[03-07,11],cpu2".
std::string first_slurm_host(const std::string& node_list);

/// Port from 15000 to 29999 for a Slurm job step, so that jobs on one node do
/// not collide.
int slurm_port_of(std::int64_t job, std::int64_t step);

/// Number of tasks on node `node` of a list such as "4(x2),3": 4, 4, 3.
/// @throws tessera::Error when there is no such node.
int slurm_tasks_on_node(const std::string& tasks_per_node, int node);

} // namespace tessera::runtime
