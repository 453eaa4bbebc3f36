// The segments of the tasks in a window as a matrix: row k has the k-th segment of every slot, so
// that one segment is compared with a row by SIMD, whose lanes are the bits of an upstream set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace recurra {

using Word = std::uint64_t;
constexpr int kSlots = 64;  // bits of a word

struct Segment {
  Word start, stop;  // stop is exclusive; start < stop
};

// Converts bounds to signed words, since AVX2 has no unsigned comparison.
inline std::int64_t ordered(Word bound) {
  return static_cast<std::int64_t>(bound ^ (Word{1} << 63));
}

// The reads, or the writes, of all tasks in the window.
class Rows {
 public:
  // Returns the slots with a segment that overlaps any of `segments`.
  Word hits(std::span<const Segment> segments, int slots) const {
    if (!used_ || segments.empty()) return 0;
    Word found = 0;
    for (int first = 0; first < slots; first += kBlock) found |= block(segments, first) << first;
    return found;
  }

  void put(int slot, std::span<const Segment> segments) {
    const std::size_t before = length_[slot], length = before + segments.size();
    if (rows_.size() < length) rows_.resize(length);
    for (std::size_t k = before; k < length; ++k) {
      rows_[k].start[slot] = ordered(segments[k - before].start);
      rows_[k].stop[slot] = ordered(segments[k - before].stop);
      if (!rows_[k].count++) used_ = k + 1 > used_ ? k + 1 : used_;
    }
    length_[slot] = length;
  }

  void clear(int slot) {
    for (std::size_t k = 0; k < length_[slot]; ++k) {
      rows_[k].start[slot] = kNoStart;
      rows_[k].stop[slot] = kNoStop;
      --rows_[k].count;
    }
    length_[slot] = 0;
    while (used_ && !rows_[used_ - 1].count) --used_;
  }

 private:
  // The bounds of an empty lane, which overlaps nothing.
  static constexpr std::int64_t kNoStart = INT64_MAX, kNoStop = INT64_MIN;

  struct alignas(64) Row {
    Row() {
      for (int s = 0; s < kSlots; ++s) start[s] = kNoStart, stop[s] = kNoStop;
    }
    std::int64_t start[kSlots], stop[kSlots];
    int count = 0;  // slots with a segment in this row
  };

#if defined(__AVX512F__)
  static constexpr int kBlock = 8;

  Word block(std::span<const Segment> segments, int first) const {
    __mmask8 found = 0;
    for (const Segment& s : segments) {
      const __m512i start = _mm512_set1_epi64(ordered(s.start));
      const __m512i stop = _mm512_set1_epi64(ordered(s.stop));
      for (std::size_t k = 0; k < used_; ++k) {
        const __m512i starts = _mm512_load_si512(rows_[k].start + first);
        const __m512i stops = _mm512_load_si512(rows_[k].stop + first);
        found |= _mm512_mask_cmpgt_epi64_mask(_mm512_cmplt_epi64_mask(starts, stop), stops, start);
      }
    }
    return found;
  }
#elif defined(__AVX2__)
  // Intrinsics, since compilers' code for the loop below is five times slower.
  static constexpr int kBlock = 16;

  Word block(std::span<const Segment> segments, int first) const {
    __m256i found[4] = {};
    for (std::size_t k = 0; k < used_; ++k) {
      const auto* starts = reinterpret_cast<const __m256i*>(rows_[k].start + first);
      const auto* stops = reinterpret_cast<const __m256i*>(rows_[k].stop + first);
      for (const Segment& s : segments) {
        const __m256i start = _mm256_set1_epi64x(ordered(s.start));
        const __m256i stop = _mm256_set1_epi64x(ordered(s.stop));
        for (int j = 0; j < 4; ++j) {
          const __m256i before = _mm256_cmpgt_epi64(stop, _mm256_load_si256(starts + j));
          const __m256i behind = _mm256_cmpgt_epi64(_mm256_load_si256(stops + j), start);
          found[j] = _mm256_or_si256(found[j], _mm256_and_si256(before, behind));
        }
      }
    }
    Word bits = 0;
    for (int j = 0; j < 4; ++j) {
      const int lanes = _mm256_movemask_pd(_mm256_castsi256_pd(found[j]));
      bits |= static_cast<Word>(lanes) << (4 * j);
    }
    return bits;
  }
#else
  static constexpr int kBlock = 8;

  Word block(std::span<const Segment> segments, int first) const {
    Word lane[kBlock] = {};  // without branches, which would be unpredictable
    for (const Segment& s : segments) {
      const std::int64_t start = ordered(s.start), stop = ordered(s.stop);
      for (std::size_t k = 0; k < used_; ++k) {
        const std::int64_t* starts = rows_[k].start + first;
        const std::int64_t* stops = rows_[k].stop + first;
        for (int j = 0; j < kBlock; ++j) lane[j] |= (starts[j] < stop) & (stops[j] > start);
      }
    }
    Word found = 0;
    for (int j = 0; j < kBlock; ++j) found |= lane[j] << j;
    return found;
  }
#endif

  std::vector<Row> rows_;
  std::size_t used_ = 0;  // rows that hold anything
  std::size_t length_[kSlots] = {};
};

}  // namespace recurra
