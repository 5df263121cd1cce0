// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/populate_memory.h"

#include "runtime/memory/missing_pages.h"

#include <gtest/gtest.h>

namespace tessera::runtime::populate_memory_test {

namespace {

/// A mapping without pages.
class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes),
        data_(::mmap(
            nullptr,
            bytes,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0)) {
    ::madvise(data_, bytes_, MADV_NOHUGEPAGE); // else one touch brings many
  }
  ~Mapping() {
    ::munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const {
    return static_cast<char*>(data_);
  }
  size_t missing() const {
    return missing_pages(data_, bytes_);
  }

 private:
  size_t bytes_;
  void* data_;
};

// Several pieces, the last one with a tail.
constexpr size_t kBytes = (size_t{200} << 20) + 5 * 4096;

} // namespace

TEST(PopulateMemory, MakesAllPagesResidentAndKeepsWhatTheyHold) {
  for (const int threads : {1, 2, 3}) {
    const Mapping mapping(kBytes);
    mapping.data()[4097] = 7;
    EXPECT_EQ(mapping.missing(), kBytes / 4096 - 1);
    ThreadPool pool{CpuPlacement(threads)};
    populate_memory(mapping.data(), kBytes, pool);
    EXPECT_EQ(mapping.missing(), 0);
    EXPECT_EQ(mapping.data()[4097], 7);
    EXPECT_EQ(mapping.data()[kBytes - 1], 0);
  }
}

TEST(PopulateMemory, WithoutTheSystemsCallPagesAreTouched) {
  const Mapping mapping(kBytes);
  mapping.data()[4097] = 7;
  detail::touch_pages(mapping.data(), kBytes);
  EXPECT_EQ(mapping.missing(), 0);
  EXPECT_EQ(mapping.data()[4097], 7);
}

} // namespace tessera::runtime::populate_memory_test
