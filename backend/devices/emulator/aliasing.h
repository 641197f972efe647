// Aliases of a tile's memory. A tile of data that a broadcast delivers to several cores is held
// once, in a shared block; words of a read-only argument stay in the argument on their way through
// memtiles to cores. The range of memory that was to receive them becomes an alias of that source,
// with copy-on-write: kernels that only read the range and channels that send it are given the
// source itself, and every other access flushes the alias first, that is, copies the data into the
// tile's memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "aligned.h"
#include "kernels/call.h"
#include "kernels/host/packed_operand.h"

namespace npu::emulator {

class BlockPool;

// Data that several cores read, and its packed form: the first core that multiplies it packs it for
// all.
struct SharedBlock {
  AlignedBytes data;
  PackedOperand packed;
  // On a cache line of their own: users are counted while other threads read the rest.
  alignas(64) BlockPool* pool = nullptr;
  std::atomic<int> users = 0;
};

// Free blocks are reused last in, first out: the last one is still in the CPU's cache. References
// to a broadcast block end on whichever thread runs their column.
class BlockPool {
 public:
  // kFixed: blocks are given out again with their size alone, and only after reuse().
  enum class Sizes : uint8_t { kGrow, kFixed };
  explicit BlockPool(Sizes sizes = Sizes::kGrow) : sizes_(sizes) {}
  SharedBlock* take(size_t bytes);
  void give_back(SharedBlock* block);
  void reuse();
  size_t bytes() const;  // of all blocks
  std::span<const std::unique_ptr<SharedBlock>> all() const { return all_; }

 private:
  SharedBlock* find(size_t bytes);

  const Sizes sizes_;
  std::vector<SharedBlock*> returned_;  // since the last reuse()
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedBlock>> all_;
  std::vector<SharedBlock*> free_;
};

// A reference to a block; the last one gives it back to its pool.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(SharedBlock* block) : block_(block) {
    if (block_) ++block_->users;
  }
  BlockRef(const BlockRef& other) : BlockRef(other.block_) {}
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() {
    if (block_ && --block_->users == 0) block_->pool->give_back(block_);
  }
  SharedBlock* operator->() const { return block_; }
  explicit operator bool() const { return block_ != nullptr; }

 private:
  SharedBlock* block_ = nullptr;
};

// Where the data of an aliased range lie.
struct AliasSource {
  std::byte* argument = nullptr;  // in an argument of the run; the block, if any, is for packing
  BlockRef block;
  std::byte* data() const { return argument ? argument : block->data.data(); }
};

// The aliases of one tile's memory; they never overlap.
class AliasTable {
 public:
  // Shorter ranges are not worth an alias: copying them takes no longer.
  static constexpr uint64_t kMinBytes = 1024;

  explicit AliasTable(std::span<std::byte> memory)
      : memory_(memory), page_shift_(std::bit_width(memory.size() / kPages / 2)) {}

  // Makes [address, address + bytes) an alias of `source`, which holds that many bytes. What lay
  // there before is forgotten.
  void add(uint64_t address, uint64_t bytes, AliasSource source);
  // Where the bytes [address, address + bytes) lie in an argument, or null: all of them aliased, by
  // one alias or by neighbours whose sources are neighbours too.
  std::byte* in_argument(uint64_t address, uint64_t bytes) const;
  // Where the bytes [address, address + bytes) lie in a block that an alias refers to, or null.
  // *whole: whether they are all of that alias.
  std::byte* in_block(uint64_t address, uint64_t bytes, BlockRef* block, bool* whole) const;
  // False only if no alias overlaps the range.
  bool may_overlap(uint64_t address, uint64_t bytes) const {
    return (pages(address, bytes) & aliased_pages_) != 0;
  }
  // Brings the memory in [address, address + bytes) up to date; every access calls this
  // first. True if that removed an alias.
  bool flush(uint64_t address, uint64_t bytes) {
    return may_overlap(address, bytes) && flush_overlapping(address, bytes);
  }
  void flush_all() { flush(0, UINT64_MAX); }
  // Flushes the aliases of arguments, when the run that they belong to ends.
  void flush_arguments();
  // Forgets all aliases without copying.
  void clear();

  // Before a kernel call: operands that the call only reads and that are aliased are redirected to
  // their source, everything else it accesses is flushed. Null `kernel`: it may access all memory.
  void redirect(std::span<KernelArgument> arguments, const kernels::Declaration* kernel);
  // Keeps the blocks of the redirected operands until unpin(), whatever happens to the aliases: for
  // a call that does not run at once.
  void pin();
  void unpin() { pinned_.clear(); }

 private:
  struct Alias {
    uint64_t address, bytes;
    AliasSource source;
    uint64_t end() const { return address + bytes; }
  };
  // A call's operand and what it reads instead.
  struct Redirection {
    size_t operand = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    const Alias* alias = nullptr;  // that the operand begins with
  };
  // The number of the first alias that ends behind `address`, and of the first one from there on
  // that begins at or behind `end`.
  size_t first_behind(uint64_t address) const {
    size_t i = first_behind_page_[page(address)];
    while (i < aliases_.size() && aliases_[i].end() <= address) ++i;
    return i;
  }
  size_t first_from(size_t first, uint64_t end) const;
  Redirection find(uint64_t address, uint64_t bytes) const;
  void divide(uint64_t address);
  void write_back(const Alias& alias);
  void flush_numbers(size_t first, size_t last);
  void index();  // after aliases have come or gone
  bool find_redirections(std::span<const KernelArgument> arguments,
                         const kernels::OperandUses& uses);
  bool flush_overlapping(uint64_t address, uint64_t bytes);

  // Pages of the memory; what lies beyond is in the last one.
  static constexpr uint64_t kPages = 64;
  uint64_t pages(uint64_t address, uint64_t bytes) const {
    const uint64_t from = page(address), to = page(end_of(address, bytes) - 1);
    return (UINT64_MAX << from) & (UINT64_MAX >> (kPages - 1 - to));
  }
  uint64_t page(uint64_t address) const { return std::min(address >> page_shift_, kPages - 1); }
  static uint64_t end_of(uint64_t address, uint64_t bytes) {
    return bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
  }

  const std::span<std::byte> memory_;
  const int page_shift_;
  std::vector<Alias> aliases_;                        // by address
  uint64_t aliased_pages_ = 0;                        // a bit per page that an alias may touch
  std::array<uint32_t, kPages> first_behind_page_{};  // of the begin of each page
  std::vector<Redirection> redirections_;             // of the next call
  std::vector<BlockRef> pinned_;
};

}  // namespace npu::emulator
