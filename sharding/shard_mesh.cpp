// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/shard_mesh.h"

#include "tessera/runtime/comm/device_mesh.h"
#include "tessera/runtime/core/error.h"

#include <string>

namespace tessera::sharding {

namespace {

std::string divisors_of(int number) {
  std::string text;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(divisor);
    }
  }
  return text;
}

} // namespace

ShardMesh::ShardMesh(int rank, int world_size, int shard_ranks) {
  const int size = shard_ranks == 0 ? world_size : shard_ranks;
  TESSERA_CHECK(
      size >= 1 && world_size % size == 0,
      "shard_ranks is {}, which does not divide the {} ranks of the job; possible values: {}, or 0 for all.",
      shard_ranks,
      world_size,
      divisors_of(world_size));
  const DeviceMesh mesh(
      {{"replicate", world_size / size}, {"shard", size}}, world_size);
  shard_rank = mesh.coordinate(rank, "shard");
  shard_size = size;
  replica = mesh.coordinate(rank, "replicate");
  replicas = world_size / size;
  shard_group = mesh.group_ranks(rank, "shard");
  replicate_group = mesh.group_ranks(rank, "replicate");
}

} // namespace tessera::sharding
