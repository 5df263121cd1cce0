// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank finds in its environment.

#include <string>
#include <vector>

namespace tessera {

/// A rank's place among the local ranks and where they meet.
struct RankPlace {
  int rank = 0;
  int world_size = 1;
  /// TCP port on 127.0.0.1 where rank 0 opens the store.
  int port = 0;
  /// Width of the terminal that shows this rank's progress bar; 0 when there is
  /// none.
  int terminal_columns = 0;
  /// BlameSocket::name().
  std::string blame_socket;
};

/// The environment of a rank as "NAME=value" strings: this process's own with
/// the variables that torchrun sets for its ranks (RANK, LOCAL_RANK,
/// WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT).
/// OMP_NUM_THREADS becomes the rank's share of the cores unless it is set, and
/// TESSERA_TERMINAL_COLUMNS names the width that a progress bar has,
/// TESSERA_LAUNCHER the socket of blame_peer().
std::vector<std::string> rank_environment(const RankPlace& place);

} // namespace tessera
