/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A made-up SMART log of a drive, and what is said of its wear: bytes, percentage, days.
 */
#include <math.h>

#include "cli/info/info.h"
#include "support/support.h"

#define HOURS_PER_YEAR (365 * 24)
#define TB	       1e12

static struct report report;

static void put_number(unsigned char *at, uint64_t number)
{
	for (int i = 0; i < 8; i++)
		at[i] = (unsigned char)(number >> 8 * i);
}

/* A drive on a path, with this log. */
static struct wear *make_drive(unsigned percent_used, double written_bytes, uint64_t hours,
			       double rated_bytes, double job_daily_bytes)
{
	unsigned char page[SMART_PAGE_BYTES];
	struct wear *wear = &report.paths[0].drives[0];

	memset(&report, 0, sizeof(report));
	report.npaths = report.paths[0].ndrives = 1;
	report.job_daily_bytes = job_daily_bytes;
	report.paths[0].asked = "/mnt/nvme";
	strcpy(report.paths[0].info.path, "/mnt/nvme");
	strcpy(report.paths[0].info.device, "nvme0n1");
	strcpy(wear->device, "nvme0n1");
	/* As the NVMe specification lays it out (5.16.1.3, SMART / Health Information). */
	memset(page, 0xff, SMART_PAGE_BYTES);
	memset(page + 32, 0, 160);
	page[5] = (unsigned char)percent_used;
	put_number(page + 32, 7); /* data units read, and written */
	put_number(page + 48, (uint64_t)(written_bytes / 512000));
	put_number(page + 112, 9); /* power cycles */
	put_number(page + 128, hours);
	smart_decode(page, wear);
	wear_forecast(wear, rated_bytes, job_daily_bytes);
	return wear;
}

static const char *written(bool plain)
{
	static char text[65536];
	FILE *file = fmemopen(text, sizeof(text), "w");
	struct json_writer json = plain ? json_as_text(file) : json_to(file, 4);

	assert_non_null(file);
	info_write(&json, &report);
	assert_int_equal(fclose(file), 0);
	return text;
}

static void expect_text(const char *words)
{
	assert_says(written(true), words);
}

TEST(a_log_page_has_percentage_bytes_and_hours)
{
	const struct wear *wear = make_drive(12, 72 * TB, HOURS_PER_YEAR, 0, 0);
	unsigned char page[SMART_PAGE_BYTES] = {0};
	struct wear whole = {.why = ""};

	assert_int_equal(wear->percent_used, 12);
	assert_float_equal(wear->written_bytes, 72 * TB, 1e6);
	assert_float_equal(wear->power_on_hours, HOURS_PER_YEAR, 1e-6);
	/* Counts of 128 bits are read whole. */
	page[48 + 8] = 1;
	page[128 + 15] = 0x80;
	smart_decode(page, &whole);
	assert_true(whole.written_bytes == 0x1p64 * 512000);
	assert_true(whole.power_on_hours == 0x1p127);
}

TEST(with_a_rated_endurance_the_days_are_what_is_left_of_it)
{
	const struct wear *wear = make_drive(3, 73 * TB, HOURS_PER_YEAR, 600 * TB, 1 * TB);

	assert_true(wear->rated);
	assert_float_equal(wear->own_daily_bytes, 0.2 * TB, 1e6);
	assert_float_equal(wear->own_days, 527 / 0.2, 0.01);
	assert_float_equal(wear->job_days, 527, 0.01);
	expect_text("    device                   nvme0n1\n"
		    "    percentage used          3\n"
		    "    written                  66.39 TiB\n"
		    "    power on hours           8760\n"
		    "    endurance                545.70 TiB\n"
		    "    endurance is rated       yes\n"
		    "    own bytes per day        186.26 GiB\n"
		    "    days at own rate         2635\n"
		    "    job bytes per day        931.32 GiB\n"
		    "    days at job rate         527\n");
}

TEST(without_one_the_percentage_used_tells_the_endurance)
{
	const struct wear *wear = make_drive(10, 73 * TB, HOURS_PER_YEAR, 0, 2 * TB);

	assert_false(wear->rated);
	assert_float_equal(wear->endurance_bytes, 730 * TB, 1e8);
	assert_float_equal(wear->own_days, 9 * 365, 0.01);
	assert_float_equal(wear->job_days, 328.5, 0.01);
	expect_text("    percentage used          10\n");
	expect_text("    endurance is rated       no\n");
	expect_text("    days at own rate         3285\n");
}

TEST(a_drive_that_is_new_or_used_up_has_no_false_days)
{
	const struct wear *wear = make_drive(0, 0, 0, 0, 1 * TB);

	assert_true(isnan(wear->own_days) && isnan(wear->job_days));
	expect_text("how long it lasts is not known yet: --tbw tells");
	wear = make_drive(0, 0, 0, 600 * TB, 1 * TB);
	assert_true(isnan(wear->own_days));
	assert_float_equal(wear->job_days, 600, 0.01);
	wear = make_drive(255, 900 * TB, HOURS_PER_YEAR, 600 * TB, 1 * TB);
	assert_float_equal(wear->own_days, 0, 1e-9);
	assert_float_equal(wear->job_days, 0, 1e-9);
	expect_text("    percentage used          255\n");
	expect_text("    days at job rate         0\n");
}

TEST(json_has_the_figures_and_null_for_what_is_unknown)
{
	const char *text;

	make_drive(10, 73 * TB, HOURS_PER_YEAR, 0, 0);
	text = written(false);
	assert_says(text, "\"device\": \"nvme0n1\"");
	assert_says(text, "\"percentage_used\": 10");
	assert_says(text, "\"days_at_own_rate\": 3285");
	assert_says(text, "\"days_at_job_rate\": null");
	assert_says(text, "\"job_bytes_per_day\": null");
	assert_null(strstr(text, "smart_error"));
}

TEST(a_drive_that_is_not_nvme_has_no_log)
{
	struct wear *wear = make_drive(0, 0, 0, 0, 0);

	*wear = (struct wear){.device = "sda"};
	smart_read(wear);
	wear_forecast(wear, 600 * TB, 1 * TB);
	assert_true(isnan(wear->own_days) && isnan(wear->job_days));
	expect_text(
		"    device                   sda\n"
		"    smart error              it is no NVMe drive, so it has no SMART log of NVMe");
	*wear = (struct wear){.device = "nvme77n1"};
	smart_read(wear);
	expect_text("the SMART log of /dev/nvme77n1 can't be read: No such file");
}

/* ---- The rate of a job ---- */

static double rate_of(const char *text, int code, const char *words)
{
	const char *path = path_in(temp_directory(), "result.json");
	struct nvs_error error = {.size = sizeof(error)};
	double daily;

	write_text(path, text);
	assert_int_equal(wear_job_rate(path, &daily, &error), code);
	assert_says(error.text, words);
	return daily;
}

TEST(jobs_of_a_result_add_up_and_steps_write_what_the_drive_was_given_in_each)
{
	assert_float_equal(rate_of("{\"jobs\": [{\"step\": {\"wall_mean_ns\": 2e9, "
				   "\"drive_written_bytes\": 4000, \"written_bytes\": 3000}, "
				   "\"write\": {\"bw_bytes\": 1}}]}",
				   0, ""),
			   2000 * 86400.0, 1e-3);
	assert_float_equal(rate_of("{\"jobs\": [{\"write\": {\"bw_bytes\": 100}}, "
				   "{\"write\": {\"bw_bytes\": 50}}, {\"read\": {}}]}",
				   0, ""),
			   150 * 86400.0, 1e-3);
}

TEST(a_result_that_tells_no_rate_is_refused_with_its_place)
{
	rate_of("{\"jobs\": [{\"read\": {\"bw_bytes\": 100}}]}", -EINVAL,
		"these jobs write nothing");
	rate_of("{\"jobs\": [{\"write\": {\"bw_bytes\": -1}}]}", -EINVAL, ":1:34: ");
	rate_of("{\"jobs\": [{\"error\": 5, \"write\": {\"bw_bytes\": 1}}]}", -EINVAL, "failed");
	rate_of("{}", -EINVAL, "no list of \"jobs\"");
}
