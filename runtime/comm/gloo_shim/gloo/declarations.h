// SPDX-License-Identifier: Apache-2.0
#pragma once
// Declares the parts of Gloo that c10d's ProcessGroupGloo.hpp names. LibTorch
// packages export Gloo from libtorch_cpu.so but do not ship its headers.
// Tessera calls none of these. The virtual functions of Store are in the same
// order as Gloo's, because ProcessGroupGloo overrides them.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

} // namespace transport

namespace rendezvous {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) = 0;
  virtual bool has_v2_support() {
    return false;
  }
  virtual std::vector<std::vector<char>> multi_get(
      const std::vector<std::string>& /*keys*/) {
    return {};
  }
  virtual void multi_set(
      const std::vector<std::string>& /*keys*/,
      const std::vector<std::vector<char>>& /*values*/) {}
  virtual void append(
      const std::string& /*key*/,
      const std::vector<char>& /*data*/) {}
  virtual int64_t add(const std::string& /*key*/, int64_t /*value*/) {
    return 0;
  }
};

} // namespace rendezvous

} // namespace gloo
