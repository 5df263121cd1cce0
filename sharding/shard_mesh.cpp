// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/shard_mesh.h"

#include "tessera/runtime/comm/device_mesh.h"
#include "tessera/runtime/core/error.h"

#include <string>
#include <utility>

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

ShardMesh ShardMesh::of_experts(int rank, int world_size, int parts) {
  TESSERA_CHECK(
      parts >= 1 && world_size % parts == 0,
      "experts are divided over {} ranks, which does not divide the {} ranks that have the same layers.",
      parts,
      world_size);
  const DeviceMesh of_parts(
      {{"shard", world_size / parts}, {"part", parts}}, world_size);
  ShardMesh mesh;
  mesh.shard_rank = of_parts.coordinate(rank, "shard");
  mesh.shard_size = world_size / parts;
  mesh.part = of_parts.coordinate(rank, "part");
  mesh.parts = parts;
  mesh.shard_group = of_parts.group_ranks(rank, "shard");
  mesh.replicate_group = {rank};
  return mesh;
}

PageMeshes::PageMeshes(ShardMesh all, std::optional<ShardMesh> of_experts)
    : module(std::move(all)), experts(std::move(of_experts)) {}

} // namespace tessera::sharding
