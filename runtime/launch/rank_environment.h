// SPDX-License-Identifier: Apache-2.0
#pragma once
// `rank_environment()` makes the environment variables of a rank.

#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// A rank's number in the job and on its node, and the rendezvous.
struct RankVariables {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  /// Where rank 0 opens the store.
  std::string master_addr = "127.0.0.1";
  int port = 0;
  /// How many times the ranks have been started again, of how many.
  int restarts = 0;
  int max_restarts = 0;
  /// Width of the terminal that shows this rank's progress bar; 0 if there is
  /// none.
  int terminal_columns = 0;
  /// FailureSocket::name().
  std::string failure_socket;
};

/// Variables that programs with LibTorch start with, {name, value}: those that
/// the user has not set.
std::vector<std::pair<std::string, std::string>> default_settings();

/// The environment of a rank as "NAME=value" strings: that of this process with
/// torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
/// GROUP_RANK, MASTER_ADDR, MASTER_PORT; with restarts
/// TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS). OMP_NUM_THREADS
/// is the rank's share of the cores unless it is set, default_settings() are
/// added, TESSERA_TERMINAL_COLUMNS the width of a progress bar, and
/// TESSERA_LAUNCHER the socket of blame_peer().
std::vector<std::string> rank_environment(const RankVariables& variables);

} // namespace tessera::runtime
