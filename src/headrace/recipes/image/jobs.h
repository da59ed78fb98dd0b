/* One job: a source, and the box of it that becomes a row of the batch. */
#ifndef HEADRACE_JOBS_H
#define HEADRACE_JOBS_H

#include "jpeg.h"
#include "resample.h"

/* Laid out as the numpy dtype JOB. Box and clamp are in pixels of the source as shown. A JPEG of `scale` 2, 4 or 8
 * is decoded at that fraction of its size, which is what width and height are of. */
typedef struct {
    int32_t is_jpeg, width, height, orientation, scale;
    double box[4];    /* x, y, width, height: becomes the whole output */
    int32_t clamp[4]; /* x0, y0, x1, y1: nothing outside is read */
    uint8_t hflip, vflip;
} Job;

typedef struct {
    const uint8_t *bytes;
    size_t size;                 /* of a JPEG */
    int width, height, channels; /* of an array */
} Source;

/* What one thread needs; made once and used for any number of jobs. */
typedef struct {
    Decoder *decoder;
    Resampler resampler;
    Buffer stored, turned;
} Scratch;

void scratch_free(Scratch *scratch);

/* Resamples a job's box into `out`. The resampler must be prepared for `spec`. Returns a status. */
int job_run(Scratch *scratch, const Spec *spec, const Job *job, const Source *source, uint8_t *out);

/* Decodes a part of a JPEG (as shown, after orientation, at 1/scale of its size) into `out`; `whole`: the part must
 * be all of it; `as_stored`: orientation is not looked at. Returns a status. */
int decode_part(Scratch *scratch, const Source *source, int x, int y, int width, int height, int channels,
                int scale, int whole, int64_t max_pixels, int as_stored, uint8_t *out);

#endif
